#include "headrace/cache/page_allocator.h"

#include <algorithm>
#include <array>

#include "headrace/core/error.h"

namespace headrace {

PageAllocator::PageAllocator(int32_t num_pages)
    : pages_("kv page", num_pages), users_(static_cast<size_t>(num_pages) + 1) {}

int32_t PageAllocator::num_idle(std::span<const int32_t> pages) const {
  return static_cast<int32_t>(
      std::ranges::count_if(pages, [this](int32_t page) { return users_[static_cast<size_t>(page)].idle(); }));
}

std::optional<std::vector<int32_t>> PageAllocator::alloc(int32_t count) {
  auto pages = pages_.alloc(count);
  if (pages) change(*pages, &Users::requests, 1);
  return pages;
}

void PageAllocator::add_request(std::span<const int32_t> pages) { change(pages, &Users::requests, 1); }
void PageAllocator::remove_request(std::span<const int32_t> pages) { change(pages, &Users::requests, -1); }
void PageAllocator::add_text(std::span<const int32_t> pages) { change(pages, &Users::texts, 1); }
void PageAllocator::remove_text(std::span<const int32_t> pages) { change(pages, &Users::texts, -1); }

void PageAllocator::change(std::span<const int32_t> pages, int32_t Users::*of, int32_t by) {
  for (const int32_t page : pages) {
    HR_ASSERT(!pages_.is_free(page));
    Users& users = users_[static_cast<size_t>(page)];
    num_idle_ -= users.idle() ? 1 : 0;
    users.*of += by;
    HR_ASSERT(users.*of >= 0);
    num_idle_ += users.idle() ? 1 : 0;
    if (users.requests == 0 && users.texts == 0) pages_.free(std::array{page});
  }
}

}  // namespace headrace
