// Reference-counted page allocator: a page is used by running requests and by cached texts.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "headrace/cache/slot_allocator.h"

namespace headrace {

// A page is free without users, and idle if only cached texts use it; evicting them frees it. Not thread-safe.
class PageAllocator {
 public:
  explicit PageAllocator(int32_t num_pages);

  int32_t num_free() const { return pages_.available_size(); }
  int32_t num_idle() const { return num_idle_; }
  int32_t num_idle(std::span<const int32_t> pages) const;  // idle ones among `pages`

  // Allocates `count` free pages with one request as user. Returns nothing, without effect, if fewer are free.
  std::optional<std::vector<int32_t>> alloc(int32_t count);
  void add_request(std::span<const int32_t> pages);
  void remove_request(std::span<const int32_t> pages);
  void add_text(std::span<const int32_t> pages);
  void remove_text(std::span<const int32_t> pages);

 private:
  struct Users {
    int32_t requests = 0, texts = 0;
    bool idle() const { return requests == 0 && texts > 0; }
  };
  void change(std::span<const int32_t> pages, int32_t Users::*of, int32_t by);

  SlotAllocator pages_;
  std::vector<Users> users_;  // by page
  int32_t num_idle_ = 0;
};

}  // namespace headrace
