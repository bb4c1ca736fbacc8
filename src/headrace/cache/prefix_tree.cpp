#include "headrace/cache/prefix_tree.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "headrace/core/error.h"

namespace headrace {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Multiplies pairs of tokens into the hash: a page of 64 takes 32 dependent products.
uint64_t hash_of(uint64_t seed, std::span<const int32_t> tokens) {
  uint64_t hash = seed;
  for (const int32_t token : tokens) {
    hash = (std::rotl(hash, 23) ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15ULL;
  }
  return mixed(hash);
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
      tokens_(std::make_unique_for_overwrite<int32_t[]>((static_cast<size_t>(num_pages) + 1) *
                                                        static_cast<size_t>(page_size))),
      buckets_(std::bit_ceil(static_cast<size_t>(num_pages) + 1)),
      evicted_(buckets_.size()) {}

std::span<int32_t> PrefixTree::tokens_of(int32_t page) const {
  const auto size = static_cast<size_t>(page_size_);
  return {tokens_.get() + index(page) * size, size};
}

uint64_t PrefixTree::key_of(Place at, std::span<const int32_t> tokens) const {
  return hash_of(at.page == 0 ? roots_[index(at.root)].key : nodes_[index(at.page)].key, tokens);
}

PrefixTree::Place PrefixTree::root_of(const std::string& salt) const {
  const auto found = root_of_salt_.find(salt);
  return {.root = found == root_of_salt_.end() ? kNoRoot : found->second};
}

int32_t PrefixTree::make_root(const std::string& salt) {
  const auto [found, is_new] = root_of_salt_.emplace(salt, 0);
  if (!is_new) return found->second;
  if (unused_roots_.empty()) {
    unused_roots_.push_back(static_cast<int32_t>(roots_.size()));
    roots_.emplace_back();
  }
  found->second = unused_roots_.back();
  unused_roots_.pop_back();
  roots_[index(found->second)] = {.salt = salt, .key = hash_of_salt(salt)};
  return found->second;
}

void PrefixTree::remove_child(const Node& of) {
  if (of.parent != 0) {
    --nodes_[index(of.parent)].children;
  } else if (--roots_[index(of.root)].children == 0) {
    root_of_salt_.erase(roots_[index(of.root)].salt);
    unused_roots_.push_back(of.root);
  }
}

int32_t PrefixTree::find(Place at, std::span<const int32_t> tokens) const {
  if (at.root == kNoRoot) return 0;
  const uint64_t key = key_of(at, tokens);
  for (int32_t page = buckets_[key & (buckets_.size() - 1)]; page != 0; page = nodes_[index(page)].next_in_bucket) {
    const Node& node = nodes_[index(page)];
    if (node.key == key && node.parent == at.page && node.root == at.root &&
        std::ranges::equal(tokens_of(page), tokens))
      return page;
  }
  return 0;
}

bool PrefixTree::was_evicted(Place at, std::span<const int32_t> tokens) const {
  if (at.root == kNoRoot) return false;
  const uint64_t key = key_of(at, tokens);
  return evicted_[key & (evicted_.size() - 1)] == key;
}

PrefixTree::Place PrefixTree::insert(Place at, const std::string& salt, std::span<const int32_t> tokens, int32_t page,
                                     Computed computed, int32_t owner) {
  if (at.root == kNoRoot) at.root = make_root(salt);
  HR_ASSERT(!contains(page) && std::cmp_equal(tokens.size(), page_size_) && find(at, tokens) == 0);
  Node& node = nodes_[index(page)];
  node = {.key = key_of(at, tokens),
          .parent = at.page,
          .root = at.root,
          .users = 1,
          .owner = owner,
          .cached = {},
          .of_state = {},
          .in_tree = true,
          .pending = computed == Computed::kNo};
  std::ranges::copy(tokens, tokens_of(page).begin());
  node.next_in_bucket = std::exchange(bucket(node.key), page);
  if (at.page == 0) {
    ++roots_[index(at.root)].children;
  } else if (++nodes_[index(at.page)].children == 2) {  // what branches off here needs the state above
    const int32_t above = state_of(at.page) != kNoSlot ? at.page : state_above(at.page);
    if (above != 0) set_superseded(above, false);
  }
  return {page, at.root};
}

void PrefixTree::set_computed(int32_t page) {
  HR_ASSERT(is_pending(page));
  nodes_[index(page)].pending = false;
}

void PrefixTree::add_user(int32_t page) {
  Node& node = nodes_[index(page)];
  HR_ASSERT(node.in_tree && !node.pending);
  if (node.users++ > 0) return;
  unlink(cached_, &Node::cached, page);
  --num_cached_;
}

void PrefixTree::remove_user(int32_t page) {
  Node& node = nodes_[index(page)];
  HR_ASSERT(node.in_tree && !node.pending && node.users > 0);
  if (--node.users > 0) return;
  append(cached_, &Node::cached, page);
  ++num_cached_;
}

PrefixTree::Evicted PrefixTree::remove(int32_t page) {
  Node& node = nodes_[index(page)];
  HR_ASSERT(node.in_tree && node.children == 0 && node.users <= 1);
  const Evicted evicted{page, node.state};
  if (node.state != kNoSlot) drop_state(page);
  if (node.users == 0) {
    unlink(cached_, &Node::cached, page);
    --num_cached_;
  }
  unhash(page);
  remove_child(node);
  node = {};
  return evicted;
}

PrefixTree::Evicted PrefixTree::evict() {
  const int32_t page = cached_.first;
  HR_ASSERT(page != 0);
  const uint64_t key = nodes_[index(page)].key;
  evicted_[key & (evicted_.size() - 1)] = key;
  return remove(page);
}

void PrefixTree::unhash(int32_t page) {
  int32_t* at = &bucket(nodes_[index(page)].key);
  while (*at != page) at = &nodes_[index(*at)].next_in_bucket;
  *at = nodes_[index(page)].next_in_bucket;
}

void PrefixTree::append(List& list, Links Node::*links, int32_t page) {
  Links& own = nodes_[index(page)].*links;
  own = {.before = list.last, .after = 0};
  (list.last != 0 ? (nodes_[index(list.last)].*links).after : list.first) = page;
  list.last = page;
}

void PrefixTree::unlink(List& list, Links Node::*links, int32_t page) {
  const Links own = nodes_[index(page)].*links;
  (own.before != 0 ? (nodes_[index(own.before)].*links).after : list.first) = own.after;
  (own.after != 0 ? (nodes_[index(own.after)].*links).before : list.last) = own.before;
}

// Returns the nearest ancestor with a state if no other text branches off on the way; else 0.
int32_t PrefixTree::state_above(int32_t page) const {
  int32_t at = nodes_[index(page)].parent;
  while (at != 0 && nodes_[index(at)].state == kNoSlot) at = nodes_[index(at)].parent;
  return at;
}

void PrefixTree::set_superseded(int32_t page, bool superseded) {
  Node& node = nodes_[index(page)];
  if (node.superseded == superseded) return;
  unlink(state_list(node), &Node::of_state, page);
  node.superseded = superseded;
  append(state_list(node), &Node::of_state, page);
}

bool PrefixTree::attach_state(int32_t page, int32_t slot) {
  Node& node = nodes_[index(page)];
  HR_ASSERT(node.in_tree && !node.pending && slot != kNoSlot);
  if (node.state != kNoSlot) return false;
  node.state = slot;
  node.superseded = node.lost_state = false;
  append(state_list(node), &Node::of_state, page);
  ++num_states_;
  for (int32_t at = node.parent; at != 0 && nodes_[index(at)].children == 1; at = nodes_[index(at)].parent) {
    if (nodes_[index(at)].state == kNoSlot) continue;
    set_superseded(at, true);
    break;
  }
  return true;
}

void PrefixTree::use_state(int32_t page) {
  List& list = state_list(nodes_[index(page)]);
  unlink(list, &Node::of_state, page);
  append(list, &Node::of_state, page);
}

void PrefixTree::drop_state(int32_t page) {
  Node& node = nodes_[index(page)];
  unlink(state_list(node), &Node::of_state, page);
  node.state = kNoSlot;
  node.superseded = false;
  --num_states_;
  if (const int32_t above = state_above(page); above != 0) set_superseded(above, false);  // the deepest one now
}

int32_t PrefixTree::detach_state(int32_t page) {
  const int32_t slot = state_of(page);
  HR_ASSERT(slot != kNoSlot);
  drop_state(page);
  return slot;
}

std::optional<int32_t> PrefixTree::evict_state(Which which) {
  const int32_t superseded = states_[kSupersededList].first;
  const int32_t page = superseded != 0 || which == Which::kSuperseded ? superseded : states_[kLiveList].first;
  if (page == 0) return std::nullopt;
  const int32_t slot = state_of(page);
  const int32_t above = state_above(page);
  const bool above_superseded = above != 0 && nodes_[index(above)].superseded, superseded_here = page == superseded;
  drop_state(page);
  // One further down still supersedes the one above.
  if (superseded_here && above_superseded) set_superseded(above, true);
  nodes_[index(page)].lost_state = true;
  return slot;
}

}  // namespace headrace
