// Allocates numbered slots (pages, states, table rows).
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace {

// Slots 1..size; slot 0 is reserved and never allocated. Allocates the smallest free slots first, so equal calls give
// equal slots. Not thread-safe. pymllm's TokenToKVPoolAllocator.
class SlotAllocator {
 public:
  // `name` is used in error messages ("kv page").
  SlotAllocator(std::string name, int32_t size);

  int32_t size() const { return size_; }
  int32_t available_size() const { return available_; }
  bool is_free(int32_t slot) const { return (word_of(slot) & bit_of(slot)) != 0; }

  // Allocates `count` slots, ascending. Returns nothing, without effect, if fewer are free. Error kInvalidArgument for
  // a negative count.
  std::optional<std::vector<int32_t>> alloc(int32_t count);

  // Frees slots. Error kInvalidArgument, without effect, for slot 0, a slot out of range or a free one.
  void free(std::span<const int32_t> slots);

  void clear();  // frees every slot

 private:
  static constexpr int32_t kWordBits = 64;
  static uint64_t bit_of(int32_t slot) { return uint64_t{1} << slot % kWordBits; }
  uint64_t word_of(int32_t slot) const { return free_[static_cast<size_t>(slot / kWordBits)]; }
  uint64_t& word_of(int32_t slot) { return free_[static_cast<size_t>(slot / kWordBits)]; }

  std::string name_;
  int32_t size_, available_;
  std::vector<uint64_t> free_;  // a bit per slot; that of slot 0 is never set
  size_t first_word_ = 0;       // no word before it has a free slot
};

}  // namespace headrace
