// The list of what changes a step's rows of logits before a token of each is chosen. LogitsProcessor applies it.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "headrace/core/device_runtime.h"
#include "headrace/sampling/sample_spot.h"
#include "headrace/sampling/token_occurrence.h"

namespace headrace {

// Reused from step to step, so that a list of no more changes than before allocates nothing. Not thread-safe.
class LogitChanges {
 public:
  // The list lies in memory that the host shares with the device of `runtime` (not owned): masks of many requests are
  // megabytes, which need no second copy on the host.
  // Tokens are addressed by int32, so rows are taken in parts of at most `most_places` logits, or one row.
  explicit LogitChanges(DeviceRuntime& runtime, int64_t most_places = INT32_MAX)
      : runtime_(runtime), most_places_(most_places) {}
  LogitChanges(const LogitChanges&) = delete;
  LogitChanges& operator=(const LogitChanges&) = delete;
  ~LogitChanges();

  // Lists the changes of one row for each spot, of `width` logits. Ids from `vocab` on are never chosen and not
  // changed. Valid until the next call; penalized() as long as the spots' histories. Waits until a list that was sent
  // is read. Error kOutOfMemory, kCuda.
  void list(std::span<const SampleSpot> spots, int64_t width, int32_t vocab);
  bool any() const { return changed_.end > changed_.first; }
  // Rows [first, end) hold all that are changed.
  struct Rows {
    int64_t first = 0, end = 0;
  };
  Rows changed_rows() const { return changed_; }

  // An array of 32-bit words within words().
  struct Words {
    int64_t first = 0, size = 0;
  };
  // Numbers to add to single logits, row by row.
  struct Additions {
    std::vector<int64_t> begins;  // [rows + 1]: those of a row are [begins[row], begins[row + 1])
    Words places, biases;         // int32: indices of tokens into the flattened rows of their part; float32
    int64_t size() const { return begins.back(); }
  };
  // Before the repetition penalty: biases, bans, copy penalties. Behind it: presence and frequency penalties.
  const Additions& before_penalty() const { return additions_[0]; }
  const Additions& behind_penalty() const { return additions_[1]; }
  int64_t num_additions() const { return additions_[0].size() + additions_[1].size(); }
  // Returns the index of an addition to this token, counted through both; absent: nothing is added.
  std::optional<int64_t> addition_to(int64_t row, int32_t id) const;
  int64_t rows_of_part() const;

  Words temperatures() const { return temperatures_; }  // float32 [rows], or none: all are 1
  std::span<const PenalizedRows> penalized() const { return penalized_; }
  Words masked_rows() const { return masked_rows_; }  // int32 [masks]
  Words masks() const { return masks_; }              // [masks, MaskTokensArgs::words_of(vocab)]
  std::span<const int32_t> words() const { return {words_, static_cast<size_t>(num_words_)}; }
  // Queues the copy of words() to `to`, on the device.
  void send(void* to);

 private:
  void clear(size_t rows);  // the list of so many rows that nothing changes
  void list_biases(std::span<const SampleSpot> spots);
  void list_penalties(std::span<const SampleSpot> spots);
  void find_rows(std::span<const SampleSpot> spots);
  void lay_out(std::span<const SampleSpot> spots);
  void make_room(int64_t words);
  void wait_until_read();
  void fill_biases();
  void fill_counts(std::span<const SampleSpot> spots);
  void fill_masks(std::span<const SampleSpot> spots);
  // Adds `bias` to the logit of `id` in the row whose additions begin at `first` of biases_.
  void add(size_t first, int32_t id, float bias);
  int32_t first_place_of(int64_t row) const;

  DeviceRuntime& runtime_;  // not owned
  int64_t most_places_, width_ = 1;
  int32_t vocab_ = 0;
  Rows changed_;
  std::array<Additions, 2> additions_{Additions{.begins = {0}}, Additions{.begins = {0}}};
  std::vector<LogitBias> biases_;  // additions before the penalty
  std::vector<PenalizedRows> penalized_;
  Words temperatures_, masked_rows_, masks_;
  int32_t* words_ = nullptr;  // from allocate_shared()
  int64_t num_words_ = 0, capacity_ = 0;
  std::unique_ptr<DeviceEvent> read_;  // null until a list is sent
};

}  // namespace headrace
