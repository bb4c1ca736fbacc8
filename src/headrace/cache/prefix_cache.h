// Prefix cache: texts of finished requests and the pages of their K and V, for later requests with a common prefix.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace headrace {

// Maps texts to pages; PageAllocator counts the pages' users. No text is a prefix of another, so each has a page whose
// tokens are its own. Lookups are linear in the number of texts. Not thread-safe.
class PrefixCache {
 public:
  explicit PrefixCache(int32_t page_size) : page_size_(page_size) {}

  // Adds `pages`, which hold K and V of the first pages.size() * page_size of `tokens`. Returns the pages that the
  // cache does not keep: those of shorter prefixes of the text, or all of `pages` if a cached text already begins with
  // it, which becomes the most recently used.
  std::vector<int32_t> keep(std::span<const int32_t> tokens, std::vector<int32_t> pages);
  // Returns the leading pages of the text with the longest common prefix with `tokens`, in whole pages, at most
  // `most_pages`. Marks that text most recently used.
  std::vector<int32_t> find(std::span<const int32_t> tokens, int32_t most_pages);
  // Evicts the least recently used text and returns its pages; empty if there is none.
  std::vector<int32_t> drop_oldest();

  int32_t num_texts() const { return static_cast<int32_t>(texts_.size()); }

 private:
  struct Text {
    std::vector<int32_t> tokens, pages;
  };

  int32_t page_size_;
  std::deque<Text> texts_;  // least recently used first
};

// Returns the number of leading whole pages of tokens common to both.
int32_t common_pages(std::span<const int32_t> a, std::span<const int32_t> b, int32_t page_size);

}  // namespace headrace
