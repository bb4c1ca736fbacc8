#include "headrace/engine/graph_sizes.h"

#include <algorithm>

namespace headrace {
namespace {

// Above this many tokens a step's GEMMs take so long that launches are free.
constexpr int32_t kMostGraphRows = 1024, kMostMixedRows = 64;
// From kFullRows tokens on, sizes are kFineRows apart.
constexpr int32_t kFullRows = 512, kFineRows = 32;

// Returns true if the graphs cover steps of up to `most` tokens, or if the strategy has no such steps.
bool holds(const RowGraphs& graphs, int64_t most) {
  const bool has_steps = graphs.most_rows > 1 || !graphs.sizes.empty();
  return !has_steps || (!graphs.sizes.empty() && graphs.sizes.back() >= most);
}

int32_t largest(const std::vector<int32_t>& sizes) { return sizes.empty() ? 0 : sizes.back(); }

// As steps_without(), for segments and the steps between them.
std::optional<std::string> segment_steps_without(const CudaGraphConfig& c, int32_t context, int64_t max_tokens) {
  const int32_t each = c.segments.keys.q_len;
  if (each == 1) return {};
  const int64_t canvases = std::min<int64_t>(c.max_requests, max_tokens / each);
  if (largest(c.segments.requests) < canvases) {
    return str("more than ", largest(c.segments.requests), " canvases of ", each, " rows at a time run without, and ",
               canvases, " requests may have one each; try fewer of them");
  }
  // A finished segment is stored by a causal pass when another one follows. The shortest prompt is one token.
  if (context > each + 1) return "the pass over a finished canvas, behind which the next one begins, runs without";
  if (c.segments.conditioning > 0 && canvases > 1) return "first steps of canvases beside later ones run without";
  return {};
}

}  // namespace

RowGraphs row_graphs(const StepShape& shape, int32_t max_requests) {
  const bool single = shape.most_rows == 1;  // then steps with several tokens are prompts of any length
  const int64_t most = single ? kMostMixedRows : std::min(kMostGraphRows, shape.most_rows * max_requests);
  RowGraphs graphs{.most_rows = single ? kMostMixedRows : shape.most_rows,
                   .most_logits = shape.most_samples * max_requests,
                   .new_keys = shape.stores == StepShape::Stores::kAll ? DeviceMetadata::NewKeys::kAllStored
                                                                       : DeviceMetadata::NewKeys::kSomeNotStored};
  if (shape.inputs == StepShape::Inputs::kMixed) graphs.mixtures = RowGraphs::Mixtures::kSome;
  const int32_t unit = single ? 8 : shape.rows;
  for (const int32_t size : capture_sizes(static_cast<int32_t>(most / unit))) {
    // Once GEMMs fill the device, padding costs as much as real tokens.
    const int32_t before = graphs.sizes.empty() ? 0 : graphs.sizes.back(), step = (kFineRows + unit - 1) / unit * unit;
    for (int32_t rows = before + step; before >= kFullRows && rows < size * unit; rows += step) {
      graphs.sizes.push_back(rows);
    }
    graphs.sizes.push_back(size * unit);
  }
  if (!graphs.sizes.empty() && graphs.sizes.back() < most) graphs.sizes.push_back(static_cast<int32_t>(most));
  return graphs;
}

RowGraphs canvas_graphs(const CanvasShape& shape, const std::optional<StepShape>& beside, int32_t max_requests,
                        int32_t context) {
  const auto most = static_cast<int32_t>(std::min<int64_t>(kMostGraphRows, int64_t{context} * max_requests));
  const int32_t usual = std::min(most, shape.samples * max_requests);
  // Attention reads keys fastest from the pool. Steps of a single request are never mixed.
  const bool all_stored = max_requests == 1 || !beside || beside->stores == StepShape::Stores::kAll;
  RowGraphs graphs{
      .most_rows = std::min(context, most),
      .most_logits = shape.at_most == CanvasShape::AtMost::kAllRows ? most : usual,
      .few_logits = usual,
      .new_keys = all_stored ? DeviceMetadata::NewKeys::kAllStored : DeviceMetadata::NewKeys::kSomeNotStored};
  // A canvas keeps its length, so its padding is paid for in every step.
  for (int32_t rows = kFineRows; rows < most; rows += rows < kFullRows ? kFineRows : 2 * kFineRows) {
    graphs.sizes.push_back(rows);
  }
  graphs.sizes.push_back(most);
  return graphs;
}

SegmentGraphs segment_graphs(const SegmentShape& shape, int32_t max_requests, int32_t vocab) {
  const bool kept = shape.logits == StepPlan::Logits::kKept;
  return {.requests = capture_sizes(std::min(max_requests, kMostGraphRows / shape.keys.q_len)),
          .keys = shape.keys,
          .conditioning = kept ? vocab : 0};
}

bool records_nothing(const CudaGraphConfig& c) {
  return c.decode_rows == CudaGraphConfig::DecodeRows::kNo && c.rows.sizes.empty() && c.canvases.sizes.empty() &&
         c.segments.requests.empty();
}

std::optional<std::string> steps_without(const CudaGraphConfig& c, int32_t context, int64_t max_tokens) {
  if (c.decode_rows == CudaGraphConfig::DecodeRows::kYes) return {};  // for any number of requests
  if (records_nothing(c)) return std::string(kUnbounded);
  if (c.rows.mixtures == RowGraphs::Mixtures::kSome) return "steps with mixtures of tokens run without";
  if (const int64_t rows = std::min<int64_t>(int64_t{c.rows.most_rows} * c.max_requests, max_tokens);
      !holds(c.rows, rows)) {
    return str("steps of more than ", largest(c.rows.sizes), " rows run without, and ", c.max_requests,
               " requests may have ", rows, "; try fewer of them");
  }
  if (const int64_t rows = std::min<int64_t>(int64_t{context} * c.max_requests, max_tokens); !holds(c.canvases, rows)) {
    return str("canvases of more than ", largest(c.canvases.sizes), " rows run without, and ", c.max_requests,
               " requests of up to ", context, " tokens may have ", rows, "; try a smaller max_model_len");
  }
  return segment_steps_without(c, context, max_tokens);
}

}  // namespace headrace
