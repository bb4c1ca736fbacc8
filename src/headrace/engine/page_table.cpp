#include "headrace/engine/page_table.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "headrace/core/error.h"

namespace headrace {

PageTable::PageTable(const PageTableConfig& config, ReqToTokenPool& rows)
    : config_(config),
      rows_(rows),
      pages_("page", config.num_pages),
      tree_(config.multiple ? config.num_pages : 0, config.page_size) {}

int32_t PageTable::num_cached(std::span<const int32_t> pages) const {
  return static_cast<int32_t>(std::ranges::count_if(pages, [&](int32_t page) { return tree_.num_users(page) == 0; }));
}

int32_t PageTable::unit() const { return std::lcm(config_.page_size, *config_.multiple) / config_.page_size; }

int32_t PageTable::most_shared(const Sequence& s) const {
  if (!shares()) return 0;
  int32_t tokens = s.prefill_len > s.prompt_len ? s.prefill_len : s.prompt_len - 1;
  if (s.params.prompt_logprobs) tokens = std::min(tokens, s.num_scored);  // rows that do not run give none
  return tokens / config_.page_size / unit() * unit();
}

std::span<const int32_t> PageTable::tokens_of(const Sequence& s, int32_t page) const {
  const auto size = static_cast<size_t>(config_.page_size);
  return std::span(s.tokens).subspan(static_cast<size_t>(page) * size, size);
}

PrefixTree::Place PageTable::place_behind(const Sequence& s, int32_t num_pages) const {
  return num_pages == 0 ? tree_.root_of(s.cache_salt) : tree_.place_of(s.pages[static_cast<size_t>(num_pages) - 1]);
}

PrefixMatch PageTable::match(const Sequence& s) const {
  PrefixMatch match;
  const int32_t most = most_shared(s);
  const int32_t begin = s.num_tree_pages;
  if (begin >= most) return match;
  const auto from = static_cast<size_t>(begin) * static_cast<size_t>(config_.page_size),
             to = static_cast<size_t>(most) * static_cast<size_t>(config_.page_size);
  const std::vector<int32_t> path =
      tree_.find_path(place_behind(s, begin), std::span(s.tokens).subspan(from, to - from));
  for (const int32_t page : path) {
    if (tree_.is_pending(page)) {
      match.owner = tree_.owner(page);
    } else {
      match.pages.push_back(page);
      if (tree_.state_of(page) != PrefixTree::kNoSlot) match.with_state = static_cast<int32_t>(match.pages.size());
    }
  }
  const int32_t computed = static_cast<int32_t>(match.pages.size()) / unit() * unit();
  match.num_pending = static_cast<int32_t>(path.size()) / unit() * unit() - computed;
  match.pages.resize(static_cast<size_t>(computed));
  return match;
}

PrefixMiss PageTable::why_miss(const Sequence& s, int32_t num_matching_pages) const {
  using Why = PrefixMiss::Why;
  PrefixMiss miss{.position = s.num_cached,
                  .num_matching = num_matching_pages * config_.page_size,
                  .num_computed = s.num_tokens() - s.num_cached,
                  .own_text = {},
                  .cached_text = {}};
  if (!shares()) {
    miss.why = Why::kNotShared;
    return miss;
  }
  PrefixTree::Place place = place_behind(s, s.num_tree_pages);
  for (int32_t i = s.num_tree_pages; i < num_matching_pages; ++i)
    place = tree_.place_of(tree_.find(place, tokens_of(s, i)));
  if (num_matching_pages > s.num_tree_pages) {
    miss.why = tree_.lost_state(place.page) ? Why::kStateEvicted : Why::kStateMissing;
  } else if (num_matching_pages < most_shared(s)) {
    const auto own = tokens_of(s, num_matching_pages);
    const int32_t other = tree_.newest_child(place);
    miss.why = tree_.was_evicted(place, own) ? Why::kPageEvicted
               : tree_.has_children(place)   ? Why::kOtherText
                                             : Why::kNewText;
    if (miss.why != Why::kOtherText) return miss;
    miss.own_text.assign(own.begin(), own.end());
    if (other != 0) miss.cached_text.assign(tree_.tokens_of(other).begin(), tree_.tokens_of(other).end());
  }
  return miss;
}

void PageTable::append(Sequence& s, std::span<const int32_t> pages) {
  rows_.write(s.table_row, static_cast<int32_t>(s.pages.size()), pages);
  s.pages.insert(s.pages.end(), pages.begin(), pages.end());
}

void PageTable::share(Sequence& s, const PrefixMatch& match, int32_t count) {
  HR_ASSERT(std::cmp_equal(s.pages.size(), s.num_tree_pages));
  const auto shared = std::span(match.pages).first(static_cast<size_t>(count));
  for (const int32_t page : shared) tree_.add_user(page);
  append(s, shared);
  s.num_computed_pages = s.num_tree_pages += count;
  s.num_cached = s.num_tree_pages * config_.page_size;
  if (s.num_preempted == 0) s.num_reused = s.num_cached;
}

bool PageTable::grow(Sequence& s, int32_t count) {
  const int32_t more = count - static_cast<int32_t>(s.pages.size());
  if (more <= 0) return true;
  if (more > num_available()) return false;
  while (pages_.available_size() < more) free(tree_.evict());
  append(s, *pages_.alloc(more));
  return true;
}

void PageTable::announce(Sequence& s) {
  if (!shares()) return;
  const int32_t whole = std::min(s.prefill_len / config_.page_size, static_cast<int32_t>(s.pages.size()));
  if (s.num_tree_pages >= whole) return;
  PrefixTree::Place place = place_behind(s, s.num_tree_pages);
  for (int32_t& i = s.num_tree_pages; i < whole; ++i) {
    if (tree_.find(place, tokens_of(s, i)) != 0) return;
    place = tree_.insert(place, s.cache_salt, tokens_of(s, i), s.pages[static_cast<size_t>(i)],
                         PrefixTree::Computed::kNo, s.table_row);
  }
}

void PageTable::publish(Sequence& s) {
  const int32_t whole = s.num_cached / config_.page_size;
  if (!shares() || s.num_computed_pages >= whole || !s.begun) return;
  for (int32_t& i = s.num_computed_pages; i < whole; ++i) {
    int32_t& page = s.pages[static_cast<size_t>(i)];
    if (i < s.num_tree_pages) {
      tree_.set_computed(page);
      continue;
    }
    const PrefixTree::Place place = place_behind(s, i);
    const int32_t same = tree_.find(place, tokens_of(s, i));
    if (same == 0) {
      tree_.insert(place, s.cache_salt, tokens_of(s, i), page, PrefixTree::Computed::kYes, s.table_row);
    } else if (tree_.is_pending(same)) {
      return;
    } else {
      tree_.add_user(same);
      pages_.free(std::array{page});
      page = same;
      rows_.write(s.table_row, i, std::array{page});
    }
    ++s.num_tree_pages;
  }
  announce(s);
}

void PageTable::free(const PrefixTree::Evicted& evicted) {
  pages_.free(std::array{evicted.page});
  if (evicted.state_slot != PrefixTree::kNoSlot) freed_states_.push_back(evicted.state_slot);
}

// A page without a state at or below its end is of no use to a model that needs one.
bool PageTable::has_use(int32_t page) const {
  return !config_.needs_states || tree_.num_children(page) > 0 || tree_.state_of(page) != PrefixTree::kNoSlot;
}

void PageTable::take_back(Sequence& s, Keeps keeps) {
  const auto in_tree = static_cast<size_t>(s.num_tree_pages);
  pages_.free(std::span(s.pages).subspan(in_tree));
  for (size_t i = in_tree; i-- > 0;) {
    const int32_t page = s.pages[i];
    const bool is_own = std::cmp_greater_equal(i, s.num_reused / config_.page_size);
    const bool leaves = tree_.is_pending(page) || (keeps == Keeps::kNo && is_own) || !has_use(page);
    if (leaves && tree_.num_users(page) == 1 && tree_.num_children(page) == 0) {
      free(tree_.remove(page));
    } else {
      tree_.remove_user(page);
    }
  }
  s.pages.clear();
  s.num_tree_pages = s.num_computed_pages = 0;
}

void PageTable::audit(std::span<Sequence* const> running) const {
  std::vector<int32_t> uses(static_cast<size_t>(config_.num_pages) + 1);
  for (const Sequence* s : running) {
    for (size_t i = 0; i < s->pages.size(); ++i) {
      const int32_t page = s->pages[i];
      HR_REQUIRE(!pages_.is_free(page), ErrorCode::kInternal, "audit: request ", s->id, " has page ", page,
                 ", which is free");
      ++uses[static_cast<size_t>(page)];
      const bool in_tree = shares() && tree_.contains(page);
      HR_REQUIRE(in_tree == std::cmp_less(i, s->num_tree_pages), ErrorCode::kInternal, "audit: page ", i,
                 " of request ", s->id, in_tree ? " is" : " is not", " in the prefix tree, it has ", s->num_tree_pages,
                 " pages there");
    }
  }
  int32_t num_free = 0, num_cached = 0;
  for (int32_t page = 1; page <= config_.num_pages; ++page) {
    const int32_t users = uses[static_cast<size_t>(page)];
    const bool in_tree = shares() && tree_.contains(page);
    HR_REQUIRE(in_tree ? users == tree_.num_users(page) : users <= 1, ErrorCode::kInternal, "audit: page ", page,
               " has ", users, " users, expected ", in_tree ? tree_.num_users(page) : 1);
    HR_REQUIRE(users > 0 || in_tree || pages_.is_free(page), ErrorCode::kInternal, "audit: page ", page,
               " is neither free nor cached nor leased");
    num_free += pages_.is_free(page) ? 1 : 0;
    num_cached += in_tree && users == 0 ? 1 : 0;
  }
  HR_REQUIRE(num_free == pages_.available_size() && (!shares() || num_cached == tree_.num_cached()),
             ErrorCode::kInternal, "audit: ", num_free, " pages are free and ", num_cached, " cached, expected ",
             pages_.available_size(), " and ", tree_.num_cached());
}

}  // namespace headrace
