// Chooses the step sizes to capture as graphs. Pure functions: shapes in, sizes out.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "headrace/decoding/decoding_strategy.h"
#include "headrace/engine/cuda_graph_runner.h"

namespace headrace {

// Graphs of a strategy's steps with up to `max_requests` requests.
RowGraphs row_graphs(const StepShape& shape, int32_t max_requests);
// Graphs of canvases of up to `context` tokens each, also beside steps of the shape `beside`.
RowGraphs canvas_graphs(const CanvasShape& shape, const std::optional<StepShape>& beside, int32_t max_requests,
                        int32_t context);
// Graphs of segments; `vocab`: logits per row.
SegmentGraphs segment_graphs(const SegmentShape& shape, int32_t max_requests, int32_t vocab);

// Returns true if there is nothing to capture; kUnbounded is the reason.
bool records_nothing(const CudaGraphConfig& graphs);
inline constexpr std::string_view kUnbounded = "the strategy's steps have no bound but the context";
// Names the decoding steps that have no graph, as the end of a sentence; absent if all have one. Assumes requests
// of up to `context` tokens and steps of up to `max_tokens` tokens.
std::optional<std::string> steps_without(const CudaGraphConfig& graphs, int32_t context, int64_t max_tokens);

}  // namespace headrace
