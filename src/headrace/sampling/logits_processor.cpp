#include "headrace/sampling/logits_processor.h"

#include <algorithm>

#include "headrace/core/device_runtime.h"

namespace headrace {
namespace {

// Returns rows [first, end) as one row.
TensorView flattened(const TensorView& logits, int64_t first, int64_t end) {
  const int64_t width = logits.dim(1);
  return {static_cast<float*>(logits.data()) + first * width, DType::kF32, {1, (end - first) * width}, logits.device()};
}

}  // namespace

TensorView LogitsProcessor::there(LogitChanges::Words words, DType dtype) const {
  return {static_cast<int32_t*>(words_.data()) + words.first, dtype, {words.size}, runtime_.device()};
}

template <class Run>
void LogitsProcessor::for_each_part(const Additions& additions, const Run& run) const {
  const int64_t rows = std::ssize(additions.begins) - 1;
  for (int64_t first = 0; first < rows; first += rows_of_part_) {
    const int64_t end = std::min(rows, first + rows_of_part_);
    const int64_t begin = additions.begins[static_cast<size_t>(first)],
                  stop = additions.begins[static_cast<size_t>(end)];
    if (stop > begin) run(first, end, begin, stop);
  }
}

void LogitsProcessor::read(const Additions& additions, const TensorView& logits, const TensorView& out) const {
  for_each_part(additions, [&](int64_t first, int64_t end, int64_t begin, int64_t stop) {
    const TensorView table = flattened(logits, first, end);
    ops_.embedding({.ids = there(additions.places, DType::kI32).slice(begin, stop),
                    .table = table.reshape({table.numel(), 1}),
                    .out = out.slice(begin, stop).reshape({stop - begin, 1})},
                   context_);
  });
}

void LogitsProcessor::add(const Additions& additions, const TensorView& logits) {
  if (additions.size() == 0) return;
  if (!zeros_ || zeros_.view().dim(0) < additions.size()) {
    zeros_ = Tensor(DType::kI32, {std::max<int64_t>(additions.size(), 64)}, runtime_);
    runtime_.fill_zero(zeros_.data(), static_cast<size_t>(zeros_.bytes()));
  }
  for_each_part(additions, [&](int64_t first, int64_t end, int64_t begin, int64_t stop) {
    ops_.bias_tokens({.logits = flattened(logits, first, end),
                      .rows = zeros_.view().slice(0, stop - begin),
                      .ids = there(additions.places, DType::kI32).slice(begin, stop),
                      .biases = there(additions.biases, DType::kF32).slice(begin, stop)},
                     context_);
  });
}

void LogitsProcessor::apply(LogitChanges& changes, const TensorView& logits, std::optional<int32_t> open_id,
                            const TensorView& model_logits) {
  HR_REQUIRE(logits.is_contiguous() && logits.dim(0) + 1 == std::ssize(changes.before_penalty().begins),
             ErrorCode::kInvalidArgument, "logits of ", logits.shape(), " are expected to be dense, with ",
             std::ssize(changes.before_penalty().begins) - 1, " rows");
  rows_of_part_ = changes.rows_of_part();
  if (!changes.words().empty()) {
    if (!words_ || words_.view().dim(0) < std::ssize(changes.words())) {
      words_ = Tensor(DType::kI32, {std::ssize(changes.words())}, runtime_);
    }
    changes.send(words_.data());
  }
  const Additions &before = changes.before_penalty(), &behind = changes.behind_penalty();
  read(before, logits, model_logits.slice(0, before.size()));
  read(behind, logits, model_logits.slice(before.size(), changes.num_additions()));
  if (changes.temperatures().size > 0) {
    const TensorView divisors = there(changes.temperatures(), DType::kF32).reshape({logits.dim(0), 1});
    ops_.pointwise({.kind = PointwiseKind::kDivide, .x = divisors, .y = logits, .out = logits}, context_);
  }
  add(before, logits);
  if (!changes.penalized().empty()) seen_.penalize(logits, changes.penalized(), open_id);
  add(behind, logits);
  const int64_t masks = changes.masked_rows().size;
  if (masks == 0) return;
  ops_.mask_tokens({.logits = logits,
                    .vocab = vocab_,
                    .rows = there(changes.masked_rows(), DType::kI32),
                    .bits = there(changes.masks(), DType::kI32).reshape({masks, MaskTokensArgs::words_of(vocab_)})},
                   context_);
}

}  // namespace headrace
