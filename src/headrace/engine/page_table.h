// Assigns KV pages to requests and shares the pages of common prefixes.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/cache/prefix_tree.h"
#include "headrace/cache/req_to_token_pool.h"
#include "headrace/cache/slot_allocator.h"
#include "headrace/request/sequence.h"

namespace headrace {

struct PageTableConfig {
  int32_t num_pages = 0, page_size = 1;
  // A shared prefix is a multiple of this many tokens; absent: no sharing, no prefix cache.
  std::optional<int32_t> multiple;
  bool needs_states = false;  // a prefix is of use only up to a cached recurrent state
};

// The part of a sequence's text that the prefix cache has, behind the pages that the sequence already shares.
struct PrefixMatch {
  std::vector<int32_t> pages;  // computed
  int32_t with_state = 0;      // of `pages`, those up to the deepest one with a state
  int32_t num_pending = 0;     // pages behind `pages` that another request is about to compute
  int32_t owner = 0;           // table row of the one that computes the last of them
};

// Each page is free, cached (in the prefix tree without users) or leased to running requests. A request writes only
// behind its num_cached tokens and shares only whole pages before them, so no page is written while another request
// reads it. Keeps the requests' rows of `rows` up to date. Not thread-safe.
class PageTable {
 public:
  // `rows`: not owned.
  PageTable(const PageTableConfig& config, ReqToTokenPool& rows);

  int32_t page_size() const { return config_.page_size; }
  int32_t pages_for(int32_t num_tokens) const { return (num_tokens + config_.page_size - 1) / config_.page_size; }
  int32_t num_available() const { return pages_.available_size() + tree_.num_cached(); }  // free or evictable
  // Returns how many of `pages` are cached; sharing them takes them out of num_available().
  int32_t num_cached(std::span<const int32_t> pages) const;

  // Returns the most leading pages that a sequence may take from others. What decides its next token always runs.
  int32_t most_shared(const Sequence& sequence) const;
  PrefixMatch match(const Sequence& sequence) const;
  // Returns where and why a match ended. Call it when the sequence has taken what it takes.
  PrefixMiss why_miss(const Sequence& sequence, int32_t num_matching_pages) const;
  // Shares the first `count` pages of a match with the sequence; num_cached is their end.
  void share(Sequence& sequence, const PrefixMatch& match, int32_t count);
  // Gives the sequence pages until it has `count`. Evicts cached pages as needed. Returns false, without effect, if too
  // few are available.
  bool grow(Sequence& sequence, int32_t count);
  // Announces the pages that the sequence is about to compute: they become pending nodes, as far as none has their
  // text.
  void announce(Sequence& sequence);
  // Makes the pages that the sequence has computed available to others. Of two pages with one text, one is freed.
  void publish(Sequence& sequence);
  // Releases all pages. kNo: those that the sequence computed leave the prefix cache.
  enum class Keeps : uint8_t { kNo, kYes };
  void take_back(Sequence& sequence, Keeps keeps);

  PrefixTree& tree() { return tree_; }
  const PrefixTree& tree() const { return tree_; }
  // Returns the state slots of evicted pages since the last call.
  std::vector<int32_t> take_freed_states() { return std::exchange(freed_states_, {}); }
  int32_t num_freed_states() const { return static_cast<int32_t>(freed_states_.size()); }
  // Throws kInternal unless each page is exactly one of free, cached and leased to some of `running`.
  void audit(std::span<Sequence* const> running) const;

 private:
  bool shares() const { return config_.multiple.has_value(); }
  int32_t unit() const;  // pages: a shared prefix is a multiple
  std::span<const int32_t> tokens_of(const Sequence& sequence, int32_t page) const;
  PrefixTree::Place place_behind(const Sequence& sequence, int32_t num_pages) const;
  void append(Sequence& sequence, std::span<const int32_t> pages);
  void free(const PrefixTree::Evicted& evicted);
  bool has_use(int32_t page) const;

  PageTableConfig config_;
  ReqToTokenPool& rows_;
  SlotAllocator pages_;
  PrefixTree tree_;
  std::vector<int32_t> freed_states_;
};

}  // namespace headrace
