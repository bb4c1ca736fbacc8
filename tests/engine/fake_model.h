// A model without weights, for simulations. The logits of a row are a function of all tokens that it sees, which
// the model reads where the engine had it put them: keys and values through the page table, recurrent states in their
// slots. A wrong page, slot, position or row therefore gives other tokens.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bench/fake_device.h"
#include "headrace/attention/radix_attention.h"
#include "headrace/attention/radix_linear_attention.h"
#include "headrace/models/model.h"
#include "headrace/ops/op_set.h"

namespace headrace::testing_support {

// The definition of the causal model: a recursion over a text, without pages, states or batches.
class FakeText {
 public:
  static constexpr int32_t kVocab = 48;
  static constexpr std::array<int32_t, 2> kEosIds = {1, 2};
  // Where it stands in a text, with a number n behind it, the row n tokens later has no numbers as logits.
  static constexpr int32_t kFatal = 3;
  static constexpr int32_t kMask = 0;  // of diffusion models

  enum class States : uint8_t { kNone, kRecurrent };
  explicit FakeText(States states) : states_(states) {}
  void push(int32_t token);
  // The model's logits behind the text, all different; NaN where a fatal token asks for it.
  std::vector<float> logits() const;

 private:
  States states_;
  std::vector<int32_t> tokens_;
  uint64_t keys_ = 0, state_ = 0;
};

// Counts and fails passes.
struct FakePasses {
  // Rows of a request in a pass: tokens from a position on. Empty on a device, where the host does not see them.
  struct Rows {
    int32_t position = 0;
    std::vector<int32_t> tokens;
  };
  struct Pass {
    int32_t spans = 0, rows = 0;
    std::vector<Rows> requests;
  };
  // The next `fails` passes throw `error`, and so does each with more than `most_rows` rows, kOutOfMemory.
  int32_t fails = 0;
  ErrorCode error = ErrorCode::kInternal;
  std::optional<int32_t> most_rows;

  static constexpr const char* kInjected = "injected into a pass";  // what their errors say

  Pass last;
  std::vector<Pass> failed;  // with the requests of the pass before, which may be in flight
};

// Runs on the CPU's or the fake device's memory with kernels() as the runner's ops.
class FakeModel final : public Model {
 public:
  // `device`: not owned; null: the CPU. With `diffusion` it has the keys that its strategy shows a row.
  FakeModel(FakeText::States states, bench::FakeDevice* device, std::optional<DiffusionInfo> diffusion = {});

  // Those of the CPU, but that attention and recurrent layers hash what they read.
  static const OpSet& kernels();

  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override;

  FakePasses& passes() const { return passes_; }

 private:
  void note(const ForwardBatch& batch) const;
  template <class Work>
  void run(Work work) const;
  Tensor states_of(const ForwardBatch& batch, const TensorView& tokens) const;

  ModelInfo info_;
  bench::FakeDevice* device_;
  RadixAttention attention_;
  Tensor conv_weight_, gate_weight_;
  std::optional<RadixLinearAttention> recurrent_;
  mutable FakePasses passes_;
};

}  // namespace headrace::testing_support
