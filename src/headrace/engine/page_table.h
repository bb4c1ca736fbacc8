// The pages of requests: which are a request's own, and which it shares with others that begin with the same text.
#pragma once
#include <optional>
#include <vector>

#include "headrace/cache/page_allocator.h"
#include "headrace/cache/prefix_cache.h"
#include "headrace/request/sequence.h"

namespace headrace {

struct RequestPagesConfig {
  int32_t num_pages = 0, page_size = 1;
  // Of tokens that two texts begin with, so many at a time may be read by both; absent: none.
  std::optional<int32_t> multiple;
  enum class KeepText : uint8_t { kNo, kYes } keep_text = KeepText::kNo;  // of requests that are over
};

// A request writes behind its num_cached tokens alone, and shares whole pages before them alone: so nobody writes what
// another one reads. Not thread-safe.
class PageTable {
 public:
  explicit PageTable(const RequestPagesConfig& config);

  int32_t page_size() const { return config_.page_size; }
  // Free, or with kept text only, which gives way.
  int32_t num_available() const { return pages_.num_free() + pages_.num_idle(); }

  // Pages at the beginning of the sequence's prompt, one token of which always runs, that `tokens` begin with too.
  int32_t in_common(const Sequence& sequence, std::span<const int32_t> tokens) const;
  // Of these, those that `other` has stored.
  int32_t stored_in_common(const Sequence& sequence, const Sequence& other) const;

  // The pages that hold the longest beginning of the sequence's prompt: of a kept text, which is the newest then, or of
  // what `other` has stored, null for nobody.
  std::vector<int32_t> stored(const Sequence& sequence, const Sequence* other);
  // `count` pages for a sequence without any, which is then cached behind `first` of them, as stored() had them. False,
  // and no change, when too few are available.
  bool give(Sequence& sequence, int32_t count, std::vector<int32_t> first);
  // The first `count` pages of `other`, which has stored them, in place of the sequence's, which is cached up to there.
  void share(Sequence& sequence, const Sequence& other, int32_t count);
  // Takes all of the sequence's pages, and keeps the text that fills whole ones.
  void take_back(Sequence& sequence);

 private:
  int32_t rounded(int32_t pages) const;

  RequestPagesConfig config_;
  PageAllocator pages_;
  PrefixCache kept_;
};

}  // namespace headrace
