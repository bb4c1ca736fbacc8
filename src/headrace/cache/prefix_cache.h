// Texts of requests that are over, and the pages that hold their K and V: a later request may begin with one.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace headrace {

// Knows which pages hold what; who else uses them is PageAllocator' to count. No text is the beginning of another one,
// so that each has a page whose tokens are its own. Not thread-safe.
class PrefixCache {
 public:
  explicit PrefixCache(int32_t page_size) : page_size_(page_size) {}

  // Keeps `pages`, which hold K and V of the first pages.size() * page_size of `tokens`. Returns pages that no longer
  // stand for a text: those of beginnings of it, or all of `pages` where another text begins with it, which is the
  // newest then.
  std::vector<int32_t> keep(std::span<const int32_t> tokens, std::vector<int32_t> pages);
  // The first pages of the text that has the longest beginning in common with `tokens`, in whole pages and at most
  // `most_pages` of them. That text is the newest from now on.
  std::vector<int32_t> find(std::span<const int32_t> tokens, int32_t most_pages);
  // Forgets the oldest text and returns its pages; nothing when there is none.
  std::vector<int32_t> drop_oldest();

  int32_t num_texts() const { return static_cast<int32_t>(texts_.size()); }

 private:
  struct Text {
    std::vector<int32_t> tokens, pages;
  };

  int32_t page_size_;
  std::deque<Text> texts_;  // the oldest first
};

// Whole pages of tokens that both begin with.
int32_t common_pages(std::span<const int32_t> a, std::span<const int32_t> b, int32_t page_size);

}  // namespace headrace
