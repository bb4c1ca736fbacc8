// Hands out numbered slots (pages, states, table rows) and takes them back.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace {

// Slots 1..size; slot 0 is reserved and never handed out. Not thread-safe. The smallest free slots go first, so
// the same calls give the same slots. pymllm's TokenToKVPoolAllocator.
class SlotAllocator {
 public:
  // `name` stands in error messages ("kv page").
  SlotAllocator(std::string name, int32_t size);

  int32_t size() const { return size_; }
  int32_t available_size() const { return available_; }
  bool is_free(int32_t slot) const { return free_[static_cast<size_t>(slot)]; }

  // `count` slots in ascending order, or nothing (and no change) when fewer are free. Error kInvalidArgument
  // for a negative count.
  std::optional<std::vector<int32_t>> alloc(int32_t count);

  // Gives slots back. Error kInvalidArgument for slot 0, a slot out of range or one that is already free; then
  // nothing is freed.
  void free(std::span<const int32_t> slots);

  void clear();  // every slot is free again

 private:
  std::string name_;
  int32_t size_, available_, lowest_ = 1;  // no free slot is below lowest_
  std::vector<bool> free_;                 // by slot; [0] is always false
};

}  // namespace headrace
