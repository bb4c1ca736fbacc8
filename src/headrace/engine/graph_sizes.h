// Which steps of a strategy are recorded as graphs. Pure: shapes in, sizes out.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "headrace/decoding/decoding_strategy.h"
#include "headrace/engine/cuda_graph_runner.h"

namespace headrace {

// Of steps that such a strategy has with up to `max_requests` requests.
RowGraphs row_graphs(const StepShape& shape, int32_t max_requests);
// Of canvases, each of up to `context` tokens, and of canvases among steps of the other shape that the strategy has.
RowGraphs canvas_graphs(const CanvasShape& shape, const std::optional<StepShape>& beside, int32_t max_requests,
                        int32_t context);
// Of segments; `vocab`: logits of a row.
SegmentGraphs segment_graphs(const SegmentShape& shape, int32_t max_requests, int32_t vocab);

// Whether there are none of any kind: kUnbounded is why.
bool records_nothing(const CudaGraphConfig& graphs);
inline constexpr std::string_view kUnbounded = "the strategy's steps have no bound but the context";
// Which steps behind prompts have no graph, as the end of a sentence; nothing where all of them have one. Of requests
// of up to `context` tokens, in steps of up to `max_tokens` rows.
std::optional<std::string> steps_without(const CudaGraphConfig& graphs, int32_t context, int64_t max_tokens);

}  // namespace headrace
