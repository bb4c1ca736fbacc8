// A block: consecutive tokens of a request that are decided together, in any order.
//
//   kActive --commit()--> kToCache --(a forward pass stores its K and V)--> gone: its tokens are in the cache
//
// A block is created when it is opened, so no token runs before.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// Tracks undecided positions itself and never infers them from token ids: a prompt may contain the mask token's id.
class DecodingBlock {
 public:
  enum class State : uint8_t { kActive, kToCache };

  // Positions [begin, end). Those before `editable_begin` are prompt and never written. Those from `valid_end` on run,
  // because the model expects whole blocks, but are never decided. [editable_begin, valid_end) starts masked.
  DecodingBlock(int32_t begin, int32_t end, int32_t editable_begin, int32_t valid_end);
  // Makes the whole blocks of a prompt, [begin, end), ready to be stored.
  static DecodingBlock of_prompt(int32_t begin, int32_t end);

  int32_t begin() const { return begin_; }
  int32_t end() const { return begin_ + static_cast<int32_t>(masked_.size()); }
  int32_t editable_begin() const { return editable_begin_; }
  int32_t valid_end() const { return valid_end_; }
  State state() const { return state_; }
  bool is_active() const { return state_ == State::kActive; }
  bool is_prompt() const { return editable_begin_ == end(); }

  bool masked(int32_t position) const { return masked_[static_cast<size_t>(position - begin_)]; }
  // Positions masked initially.
  int32_t num_editable() const { return valid_end_ > editable_begin_ ? valid_end_ - editable_begin_ : 0; }
  // Undecided positions before valid_end.
  int32_t num_masked() const;
  std::vector<int32_t> masked_positions() const;
  bool complete() const { return num_masked() == 0; }
  // Share of decided positions before valid_end, with the prompt's.
  float progress() const;
  // The first undecided position, or valid_end.
  int32_t decided_end() const;

  void decide(int32_t position);      // Error kInternal for a prompt position or one from valid_end on
  void remask(int32_t position);      // likewise
  void clip(int32_t valid_end);       // drops positions from here on
  void keep_open() { open_ = true; }  // decided tokens may change; a complete block is not ready to be stored
  void settle() { open_ = false; }    // decided tokens are final; the initial state
  bool settled() const { return !open_ && complete(); }
  bool may_change() const { return open_ && is_active(); }
  void commit();  // kActive to kToCache; Error kInternal unless settled

  int32_t num_steps() const { return num_steps_; }                // forward passes over the block
  int32_t num_edit_steps() const { return num_edit_steps_; }      // of these, passes without masks in it
  int32_t num_stable_steps() const { return num_stable_steps_; }  // consecutive passes that confirmed the one before
  void set_num_stable_steps(int32_t count) { num_stable_steps_ = count; }
  float stable_share() const { return stable_share_; }  // share of decided tokens that the last pass chose again
  void set_stable_share(float share) { stable_share_ = share; }
  // Counts a pass, before its decisions.
  void count_step() {
    ++num_steps_;
    num_edit_steps_ += complete() ? 1 : 0;
  }

 private:
  void check_writable(int32_t position) const;

  int32_t begin_, editable_begin_, valid_end_;
  State state_ = State::kActive;
  std::vector<bool> masked_;
  bool open_ = false;
  int32_t num_steps_ = 0, num_edit_steps_ = 0, num_stable_steps_ = 0;
  float stable_share_ = 0;
};

}  // namespace headrace
