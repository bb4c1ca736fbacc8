// Assigns KV pages to requests and shares the pages of common prompt prefixes.
#pragma once
#include <optional>
#include <vector>

#include "headrace/cache/page_allocator.h"
#include "headrace/cache/prefix_cache.h"
#include "headrace/request/sequence.h"

namespace headrace {

struct RequestPagesConfig {
  int32_t num_pages = 0, page_size = 1;
  // A shared prefix is a multiple of this many tokens; absent: no sharing.
  std::optional<int32_t> multiple;
  enum class KeepText : uint8_t { kNo, kYes } keep_text = KeepText::kNo;  // kYes: cache the text of finished requests
};

// A request writes only behind its num_cached tokens and shares only whole pages before them, so no page is written
// while another request reads it. Not thread-safe.
class PageTable {
 public:
  explicit PageTable(const RequestPagesConfig& config);

  int32_t page_size() const { return config_.page_size; }
  // Pages that are free, or used only by the prefix cache and evictable.
  int32_t num_available() const { return pages_.num_free() + pages_.num_idle(); }

  // Returns the number of leading whole pages of the sequence's prompt that `tokens` begins with, too. The prompt's
  // last token always runs and is never shared.
  int32_t in_common(const Sequence& sequence, std::span<const int32_t> tokens) const;
  // As in_common, with the tokens that `other` has stored.
  int32_t stored_in_common(const Sequence& sequence, const Sequence& other) const;

  // Returns the pages of the longest stored prefix of the prompt: from the prefix cache, which marks that text as most
  // recently used, or from `other`, which may be null.
  std::vector<int32_t> stored(const Sequence& sequence, const Sequence* other);
  // Assigns `count` pages to a sequence that has none, the first of them `first`, as returned by stored(); num_cached
  // is their end. Evicts cached texts as needed. Returns false, without effect, if too few pages are available.
  bool give(Sequence& sequence, int32_t count, std::vector<int32_t> first);
  // Replaces the sequence's first `count` pages by those of `other`, which has stored them, and sets num_cached to
  // their end.
  void share(Sequence& sequence, const Sequence& other, int32_t count);
  // Releases all of the sequence's pages; the prefix cache keeps the whole pages.
  void take_back(Sequence& sequence);

 private:
  int32_t rounded(int32_t pages) const;

  RequestPagesConfig config_;
  PageAllocator pages_;
  PrefixCache kept_;
};

}  // namespace headrace
