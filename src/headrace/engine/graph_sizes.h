// Which steps of a strategy are recorded as graphs. Pure: shapes in, sizes out.
#pragma once
#include <optional>

#include "headrace/engine/cuda_graph_runner.h"
#include "headrace/strategy/decoding_strategy.h"

namespace headrace {

// Of steps that such a strategy has with up to `max_requests` requests.
RowGraphs row_graphs(const StepShape& shape, int32_t max_requests);
// Of canvases, each of up to `context` tokens, and of canvases among steps of the other shape that the strategy has.
RowGraphs canvas_graphs(const CanvasShape& shape, const std::optional<StepShape>& beside, int32_t max_requests,
                        int32_t context);
// Of segments; `vocab`: logits of a row.
SegmentGraphs segment_graphs(const SegmentShape& shape, int32_t max_requests, int32_t vocab);

}  // namespace headrace
