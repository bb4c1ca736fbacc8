#include "headrace/engine/page_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "headrace/core/error.h"

namespace headrace {
namespace {

std::span<const int32_t> prompt_of(const Sequence& s) {
  return std::span(s.tokens).first(static_cast<size_t>(s.prompt_len));
}

}  // namespace

PageTable::PageTable(const RequestPagesConfig& config)
    : config_(config), pages_(config.num_pages), kept_(config.page_size) {}

int32_t PageTable::rounded(int32_t pages) const {
  const int32_t unit = std::lcm(config_.page_size, *config_.multiple) / config_.page_size;
  return pages / unit * unit;
}

int32_t PageTable::in_common(const Sequence& s, std::span<const int32_t> tokens) const {
  if (!config_.multiple) return 0;
  const auto shareable = prompt_of(s).first(static_cast<size_t>(s.prompt_len - 1));
  return rounded(common_pages(shareable, tokens, config_.page_size));
}

int32_t PageTable::stored_in_common(const Sequence& s, const Sequence& other) const {
  return in_common(s, std::span(other.tokens).first(static_cast<size_t>(other.num_cached)));
}

std::vector<int32_t> PageTable::stored(const Sequence& s, const Sequence* other) {
  std::vector<int32_t> first;
  if (config_.multiple && config_.keep_text == RequestPagesConfig::KeepText::kYes) {
    first = kept_.find(prompt_of(s), (s.prompt_len - 1) / config_.page_size);
    first.resize(static_cast<size_t>(rounded(static_cast<int32_t>(first.size()))));
  }
  const int32_t theirs = other != nullptr ? stored_in_common(s, *other) : 0;
  if (theirs > static_cast<int32_t>(first.size())) first.assign(other->pages.begin(), other->pages.begin() + theirs);
  return first;
}

bool PageTable::give(Sequence& s, int32_t count, std::vector<int32_t> first) {
  const int32_t more = count - static_cast<int32_t>(first.size());
  if (more > num_available() - pages_.num_idle(first)) return false;
  pages_.add_request(first);
  while (pages_.num_free() < more) pages_.remove_text(kept_.drop_oldest());
  s.num_cached = s.num_reused = static_cast<int32_t>(first.size()) * config_.page_size;
  s.pages = std::move(first);
  const std::vector<int32_t> fresh = *pages_.alloc(more);
  s.pages.insert(s.pages.end(), fresh.begin(), fresh.end());
  return true;
}

void PageTable::share(Sequence& s, const Sequence& other, int32_t count) {
  HR_ASSERT(s.num_cached % config_.page_size == 0 && other.num_cached >= count * config_.page_size);
  const auto begin = static_cast<size_t>(s.num_cached / config_.page_size);
  const auto theirs = std::span(other.pages).first(static_cast<size_t>(count)).subspan(begin);
  const auto own = std::span(s.pages).subspan(begin, theirs.size());
  pages_.add_request(theirs);
  pages_.remove_request(own);
  std::ranges::copy(theirs, own.begin());
  s.num_cached = s.num_reused = count * config_.page_size;
}

void PageTable::take_back(Sequence& s) {
  std::vector<int32_t> whole;
  if (config_.multiple && config_.keep_text == RequestPagesConfig::KeepText::kYes) {
    const auto count = std::min(s.pages.size(), static_cast<size_t>(s.num_cached / config_.page_size));
    whole.assign(s.pages.begin(), s.pages.begin() + static_cast<std::ptrdiff_t>(count));
  }
  pages_.add_text(whole);
  pages_.remove_request(s.pages);
  pages_.remove_text(kept_.keep(s.tokens, std::move(whole)));
  s.pages.clear();
}

}  // namespace headrace
