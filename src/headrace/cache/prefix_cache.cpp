#include "headrace/cache/prefix_cache.h"

#include <algorithm>
#include <utility>

namespace headrace {

int32_t common_pages(std::span<const int32_t> a, std::span<const int32_t> b, int32_t page_size) {
  return static_cast<int32_t>(std::ranges::mismatch(a, b).in1 - a.begin()) / page_size;
}

std::vector<int32_t> PrefixCache::keep(std::span<const int32_t> tokens, std::vector<int32_t> pages) {
  if (pages.empty()) return {};
  const auto covered = tokens.first(pages.size() * static_cast<size_t>(page_size_));
  std::vector<int32_t> dropped;
  for (auto text = texts_.begin(); text != texts_.end();) {
    const auto common = static_cast<size_t>(common_pages(text->tokens, covered, page_size_));
    if (common == pages.size()) {
      std::rotate(text, text + 1, texts_.end());
      return pages;
    }
    if (common < text->pages.size()) {
      ++text;
      continue;
    }
    dropped.insert(dropped.end(), text->pages.begin(), text->pages.end());
    text = texts_.erase(text);
  }
  texts_.push_back({{covered.begin(), covered.end()}, std::move(pages)});
  return dropped;
}

std::vector<int32_t> PrefixCache::find(std::span<const int32_t> tokens, int32_t most_pages) {
  int32_t longest = 0;
  auto found = texts_.end();
  for (auto text = texts_.begin(); text != texts_.end(); ++text) {
    const int32_t common = std::min(common_pages(text->tokens, tokens, page_size_), most_pages);
    if (common > longest) longest = common, found = text;
  }
  if (found == texts_.end()) return {};
  std::rotate(found, found + 1, texts_.end());
  const std::vector<int32_t>& pages = texts_.back().pages;
  return {pages.begin(), pages.begin() + longest};
}

std::vector<int32_t> PrefixCache::drop_oldest() {
  if (texts_.empty()) return {};
  std::vector<int32_t> pages = std::move(texts_.front().pages);
  texts_.pop_front();
  return pages;
}

}  // namespace headrace
