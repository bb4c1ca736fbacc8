// Consecutive tokens of a request that are decided together, in any order.
//
//   kActive --commit()--> kToCache --(a forward pass stores its K and V)--> gone: its tokens are in the cache
//
// A block that is not opened yet does not exist, so no row is ever run for one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// Which positions are undecided is kept here and never read from token ids: a prompt may hold the mask token's id.
class DecodingBlock {
 public:
  enum class State : uint8_t { kActive, kToCache };

  // Positions [begin, end). Those before `editable_begin` are prompt and never written; those from `valid_end` on are
  // run, because the model knows whole blocks only, but never decided. [editable_begin, valid_end) starts masked.
  DecodingBlock(int32_t begin, int32_t end, int32_t editable_begin, int32_t valid_end);
  // The whole blocks of a prompt, [begin, end), ready to be stored.
  static DecodingBlock of_prompt(int32_t begin, int32_t end);

  int32_t begin() const { return begin_; }
  int32_t end() const { return begin_ + static_cast<int32_t>(masked_.size()); }
  int32_t editable_begin() const { return editable_begin_; }
  int32_t valid_end() const { return valid_end_; }
  State state() const { return state_; }
  bool is_active() const { return state_ == State::kActive; }
  bool is_prompt() const { return editable_begin_ == end(); }

  bool masked(int32_t position) const { return masked_[static_cast<size_t>(position - begin_)]; }
  // Positions that were masked at first.
  int32_t num_editable() const { return valid_end_ > editable_begin_ ? valid_end_ - editable_begin_ : 0; }
  // Undecided positions before valid_end.
  int32_t num_masked() const;
  std::vector<int32_t> masked_positions() const;
  bool complete() const { return num_masked() == 0; }
  // Share of the positions before valid_end that are decided, the prompt's among them.
  float progress() const;
  // The first undecided position, or valid_end.
  int32_t decided_end() const;

  void decide(int32_t position);      // Error kInternal for a prompt position or one from valid_end on
  void remask(int32_t position);      // likewise
  void clip(int32_t valid_end);       // positions from here on no longer matter
  void keep_open() { open_ = true; }  // decided tokens may change, so that a complete block is not ready to be stored
  void settle() { open_ = false; }    // they will not: how blocks start
  bool settled() const { return !open_ && complete(); }
  bool may_change() const { return open_ && is_active(); }
  void commit();  // kActive to kToCache; Error kInternal for a block that is not settled

  int32_t num_steps() const { return num_steps_; }                // forward passes that it was denoised in
  int32_t num_edit_steps() const { return num_edit_steps_; }      // of these, passes that found no masks in it
  int32_t num_stable_steps() const { return num_stable_steps_; }  // in a row that confirmed the one before
  void set_num_stable_steps(int32_t count) { num_stable_steps_ = count; }
  float stable_share() const { return stable_share_; }  // of its decided tokens, that the last pass chose again
  void set_stable_share(float share) { stable_share_ = share; }
  // Of a pass that has decided nothing yet.
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
