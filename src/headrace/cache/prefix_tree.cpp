#include "headrace/cache/prefix_tree.h"

#include <algorithm>
#include <array>
#include <bit>

#include "headrace/core/error.h"

namespace headrace {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Both halves of the product, folded (as wyhash does).
uint64_t folded_product(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Two chains of products, each of pairs of tokens, so that a page of 64 waits for 16 of them.
uint64_t hash_of(uint64_t seed, std::span<const int32_t> tokens) {
  constexpr uint64_t kEven = 0x9e3779b97f4a7c15ULL, kOdd = 0xd1b54a32d192ed03ULL;
  const auto pair_at = [&](size_t i) {
    const uint64_t second = i + 1 < tokens.size() ? static_cast<uint32_t>(tokens[i + 1]) : 0;
    return second << 32 | static_cast<uint32_t>(tokens[i]);
  };
  uint64_t even = seed ^ kOdd, odd = seed ^ kEven;
  size_t i = 0;
  for (; i + 4 <= tokens.size(); i += 4) {
    even = folded_product(even ^ pair_at(i), kEven);
    odd = folded_product(odd ^ pair_at(i + 2), kOdd);
  }
  for (; i < tokens.size(); i += 2) even = folded_product(even ^ pair_at(i), kEven);
  return mixed(even ^ std::rotl(odd, 32));
}

uint64_t hash_of_salt(std::string_view salt) {
  uint64_t hash = 0x2545f4914f6cdd1dULL;
  for (const char c : salt) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mixed(hash);
}

}  // namespace

PrefixTree::PrefixTree(int32_t num_pages, int32_t page_size)
    : page_size_(page_size),
      nodes_(static_cast<size_t>(num_pages) + 1),
      tokens_(DType::kI32, {int64_t{num_pages} + 1, page_size}),
      entries_(std::bit_ceil(2 * nodes_.size())),
      evicted_(std::bit_ceil(nodes_.size())) {}

std::span<const int32_t> PrefixTree::tokens_of(int32_t page) const { return own_tokens(page); }

bool PrefixTree::has_children(Place at) const {
  if (at.page != 0) return num_children(at.page) > 0;
  return at.root != kNoRoot && roots_[index(at.root)].children > 0;
}

int32_t PrefixTree::newest_child(Place at) const {
  if (at.page != 0) return nodes_[index(at.page)].newest_child;
  return at.root == kNoRoot ? 0 : roots_[index(at.root)].newest_child;
}

int32_t& PrefixTree::newest_child_of_parent(const Node& node) {
  return node.parent != 0 ? nodes_[index(node.parent)].newest_child : roots_[index(node.root)].newest_child;
}

std::span<int32_t> PrefixTree::own_tokens(int32_t page) const {
  const auto size = static_cast<size_t>(page_size_);
  return {static_cast<int32_t*>(tokens_.data()) + index(page) * size, size};
}

PrefixTree::Place PrefixTree::root_of(const std::string& salt) const {
  const auto found = root_of_salt_.find(salt);
  return {.root = found == root_of_salt_.end() ? kNoRoot : found->second, .key = hash_of_salt(salt)};
}

int32_t PrefixTree::root_for(const std::string& salt) {
  const auto [found, is_new] = root_of_salt_.emplace(salt, 0);
  if (!is_new) return found->second;
  if (unused_roots_.empty()) {
    unused_roots_.push_back(static_cast<int32_t>(roots_.size()));
    roots_.emplace_back();
  }
  found->second = unused_roots_.back();
  unused_roots_.pop_back();
  roots_[index(found->second)].salt = salt;
  return found->second;
}

void PrefixTree::remove_child(const Node& of) {
  if (int32_t& newest = newest_child_of_parent(of); &nodes_[index(newest)] == &of) newest = 0;
  if (of.parent != 0) {
    --nodes_[index(of.parent)].children;
  } else if (--roots_[index(of.root)].children == 0) {
    root_of_salt_.erase(roots_[index(of.root)].salt);
    roots_[index(of.root)] = {};
    unused_roots_.push_back(of.root);
  }
}

int32_t PrefixTree::find(Place at, std::span<const int32_t> tokens) const {
  return at.root == kNoRoot ? 0 : find(hash_of(at.key, tokens), at, tokens);
}

int32_t PrefixTree::find(uint64_t key, Place at, std::span<const int32_t> tokens) const {
  for (size_t i = home_of(key); entries_[i].page != 0; i = behind(i)) {
    if (entries_[i].tag != static_cast<uint32_t>(key)) continue;
    const int32_t page = entries_[i].page;
    const Node& node = nodes_[index(page)];
    if (node.key == key && node.parent == at.page && node.root == at.root &&
        std::ranges::equal(tokens_of(page), tokens))
      return page;
  }
  return 0;
}

// Cache misses overlap: a page's entry is asked for 2 * kAhead pages early, its node and tokens kAhead pages early.
std::vector<int32_t> PrefixTree::find_path(Place at, std::span<const int32_t> tokens) const {
  std::vector<int32_t> path;
  if (at.root == kNoRoot) return path;
  constexpr size_t kAhead = 8, kKeys = 4 * kAhead;
  std::array<uint64_t, kKeys> keys{};  // of the pages in flight; that of page i is at i % kKeys
  const auto size = static_cast<size_t>(page_size_);
  const size_t num_pages = tokens.size() / size;
  uint64_t key = at.key;
  for (size_t i = 0; path.size() < num_pages; ++i) {
    if (i < num_pages) {
      key = keys[i % kKeys] = hash_of(key, tokens.subspan(i * size, size));
      __builtin_prefetch(&entries_[home_of(key)]);
    }
    if (i >= kAhead && i - kAhead < num_pages) prefetch_node(keys[(i - kAhead) % kKeys]);
    if (i < 2 * kAhead) continue;
    const int32_t page = find(keys[path.size() % kKeys], at, tokens.subspan(path.size() * size, size));
    if (page == 0) break;
    path.push_back(page);
    at = place_of(page);
  }
  return path;
}

void PrefixTree::prefetch_node(uint64_t key) const {
  const int32_t page = entries_[home_of(key)].page;
  __builtin_prefetch(&nodes_[index(page)]);
  const std::span<const int32_t> tokens = tokens_of(page);
  for (size_t i = 0; i < tokens.size(); i += 16) __builtin_prefetch(&tokens[i]);  // 16 are a cache line
}

bool PrefixTree::was_evicted(Place at, std::span<const int32_t> tokens) const {
  const uint64_t key = hash_of(at.key, tokens);
  return evicted_[key & (evicted_.size() - 1)] == key;
}

PrefixTree::Place PrefixTree::insert(Place at, const std::string& salt, std::span<const int32_t> tokens, int32_t page,
                                     Computed computed, int32_t owner) {
  HR_ASSERT(at.page == 0 || num_users(at.page) > 0);
  if (at.page == 0) at = {.root = root_for(salt), .key = hash_of_salt(salt)};
  const uint64_t key = hash_of(at.key, tokens);
  HR_ASSERT(!contains(page) && std::cmp_equal(tokens.size(), page_size_) && find(key, at, tokens) == 0);
  nodes_[index(page)] = {.key = key,
                         .parent = at.page,
                         .root = at.root,
                         .users = 1,
                         .owner = owner,
                         .in_tree = true,
                         .pending = computed == Computed::kNo};
  std::ranges::copy(tokens, own_tokens(page).begin());
  newest_child_of_parent(nodes_[index(page)]) = page;
  add_entry(key, page);
  if (at.page == 0) {
    ++roots_[index(at.root)].children;
  } else if (++nodes_[index(at.page)].children == 2 && any_superseded()) {  // what branches off here needs it
    const int32_t needed = state_of(at.page) != kNoSlot ? at.page : state_above(at.page);
    if (needed != 0) set_superseded(needed, false);
  }
  return {page, at.root, key};
}

void PrefixTree::set_computed(int32_t page) {
  HR_ASSERT(is_pending(page));
  nodes_[index(page)].pending = false;
}

void PrefixTree::add_user(int32_t page) {
  Node& node = nodes_[index(page)];
  HR_ASSERT(node.in_tree && !node.pending);
  if (node.users++ == 0) remove_cached(page);
}

void PrefixTree::remove_user(int32_t page) {
  Node& node = nodes_[index(page)];
  HR_ASSERT(node.in_tree && !node.pending && node.users > 0);
  if (--node.users == 0) add_cached(page);
}

PrefixTree::Evicted PrefixTree::remove(int32_t page) {
  Node& node = nodes_[index(page)];
  HR_ASSERT(node.in_tree && node.children == 0 && node.users <= 1);
  const Evicted evicted{page, node.state};
  if (node.state != kNoSlot) drop_state(page);
  if (node.users == 0) remove_cached(page);
  remove_entry(node.key, page);
  remove_child(node);
  node = {};
  return evicted;
}

PrefixTree::Evicted PrefixTree::evict() {
  const int32_t page = first_cached_;
  HR_ASSERT(page != 0);
  const uint64_t key = nodes_[index(page)].key;
  evicted_[key & (evicted_.size() - 1)] = key;
  return remove(page);
}

void PrefixTree::add_entry(uint64_t key, int32_t page) {
  size_t at = home_of(key);
  while (entries_[at].page != 0) at = behind(at);
  entries_[at] = {static_cast<uint32_t>(key), page};
}

// Moves entries behind it to the hole, where their own searches pass it.
void PrefixTree::remove_entry(uint64_t key, int32_t page) {
  const size_t mask = entries_.size() - 1;
  size_t hole = home_of(key);
  while (entries_[hole].page != page) hole = behind(hole);
  for (size_t at = behind(hole); entries_[at].page != 0; at = behind(at)) {
    if (((at - entries_[at].tag) & mask) < ((at - hole) & mask)) continue;
    entries_[hole] = entries_[at];
    hole = at;
  }
  entries_[hole] = {};
}

void PrefixTree::add_cached(int32_t page) {
  nodes_[index(page)].before = last_cached_;
  nodes_[index(page)].after = 0;
  (last_cached_ != 0 ? nodes_[index(last_cached_)].after : first_cached_) = page;
  last_cached_ = page;
  ++num_cached_;
}

void PrefixTree::remove_cached(int32_t page) {
  const Node& node = nodes_[index(page)];
  (node.before != 0 ? nodes_[index(node.before)].after : first_cached_) = node.after;
  (node.after != 0 ? nodes_[index(node.after)].before : last_cached_) = node.before;
  --num_cached_;
}

// Returns the nearest ancestor with a state if no other text branches off on the way; else 0.
int32_t PrefixTree::state_above(int32_t page) const {
  int32_t at = nodes_[index(page)].parent;
  while (at != 0 && nodes_[index(at)].children == 1 && nodes_[index(at)].state == kNoSlot) {
    at = nodes_[index(at)].parent;
  }
  return at != 0 && nodes_[index(at)].children == 1 ? at : 0;
}

void PrefixTree::set_superseded(int32_t page, bool superseded) {
  Node& node = nodes_[index(page)];
  auto entry = states_like(node).extract({node.last_use, page});
  node.superseded = superseded;
  states_like(node).insert(std::move(entry));
}

bool PrefixTree::attach_state(int32_t page, int32_t slot) {
  Node& node = nodes_[index(page)];
  HR_ASSERT(node.in_tree && !node.pending && slot != kNoSlot);
  if (node.state != kNoSlot) return false;
  node.state = slot;
  node.superseded = node.lost_state = false;
  node.last_use = ++num_uses_;
  live_.emplace(node.last_use, page);
  if (const int32_t above = state_above(page); above != 0) set_superseded(above, true);
  return true;
}

void PrefixTree::use_state(int32_t page) {
  Node& node = nodes_[index(page)];
  HR_ASSERT(node.state != kNoSlot);
  States& states = states_like(node);
  states.erase({node.last_use, page});
  node.last_use = ++num_uses_;
  states.emplace(node.last_use, page);
}

void PrefixTree::drop_state(int32_t page) {
  Node& node = nodes_[index(page)];
  states_like(node).erase({node.last_use, page});
  node.state = kNoSlot;
  if (std::exchange(node.superseded, false)) return;  // the state that supersedes this one supersedes the one above
  if (!any_superseded()) return;
  if (const int32_t above = state_above(page); above != 0) set_superseded(above, false);
}

int32_t PrefixTree::detach_state(int32_t page) {
  const int32_t slot = state_of(page);
  HR_ASSERT(slot != kNoSlot);
  drop_state(page);
  return slot;
}

std::optional<int32_t> PrefixTree::evict_state(Which which) {
  const States& states = any_superseded() || which == Which::kSuperseded ? superseded_ : live_;
  if (states.empty()) return std::nullopt;
  const int32_t page = states.begin()->second;
  nodes_[index(page)].lost_state = true;
  return detach_state(page);
}

}  // namespace headrace
