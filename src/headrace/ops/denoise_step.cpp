#include "headrace/ops/denoise_step.h"

#include <algorithm>

#include "headrace/ops/checks.h"

namespace headrace {

void check(const DenoiseStepArgs& a) {
  const int64_t requests = a.requests(), results = a.best.dim(0);
  check_dtype("denoise_step: best", a.best, DType::kI32);
  check_shape("denoise_step: stats", a.stats, {results, 4});
  check_dtype("denoise_step: stats", a.stats, DType::kF32);
  check_rows_contiguous("denoise_step: stats", a.stats);
  check_shape("denoise_step: ids", a.ids, {results});
  check_dtype("denoise_step: ids", a.ids, DType::kI32);
  check_shape("denoise_step: logits", a.logits, {results});
  check_dtype("denoise_step: logits", a.logits, DType::kF32);
  check_shape("denoise_step: draws", a.draws, {results, static_cast<int64_t>(sizeof(TokenDraw))});
  check_dtype("denoise_step: draws", a.draws, DType::kU8);
  HR_REQUIRE(a.block_size >= 1 && a.block_size <= DenoiseState::kMaxBlock, ErrorCode::kInvalidArgument,
             "denoise_step: block_size is ", a.block_size, ", expected 1 to ", DenoiseState::kMaxBlock);
  HR_REQUIRE(requests >= 1 && requests <= kMaxBlockRequests, ErrorCode::kInvalidArgument, "denoise_step: ", requests,
             " requests, expected 1 to ", kMaxBlockRequests);
  HR_REQUIRE(a.tokens.rank() == 2 && a.tokens.dim(0) == requests && a.tokens.dim(1) >= int64_t{2} * a.block_size,
             ErrorCode::kInvalidArgument, "denoise_step: tokens are ", a.tokens.shape(), ", expected ", requests,
             " rows of ", 2 * a.block_size, " or more");
  check_dtype("denoise_step: tokens", a.tokens, DType::kI32);
  check_shape("denoise_step: counter", a.counter, {2});
  check_shape("denoise_step: num_rows", a.rows.num_rows, {1});
  check_dtype("denoise_step: num_rows", a.rows.num_rows, DType::kI32);
  HR_REQUIRE(a.rows.num_spans() > requests, ErrorCode::kInvalidArgument, "denoise_step: ", a.rows.num_spans(),
             " spans, expected more than the ", requests, " requests");
  HR_REQUIRE(a.block_sizes >= 0 && a.block_sizes <= a.sizes.numel(), ErrorCode::kInvalidArgument,
             "denoise_step: ", a.block_sizes, " of ", a.sizes.numel(), " sizes are for blocks");
  const int64_t most = a.most_rows;
  HR_REQUIRE(a.rows.ids.numel() >= most && a.rows.positions.numel() >= most && a.rows.write_slots.numel() >= most,
             ErrorCode::kInvalidArgument, "denoise_step: room for ", a.rows.ids.numel(), " rows, expected ", most);
  HR_REQUIRE(a.rows.logits_rows.numel() >= requests * a.block_size && results >= requests * a.block_size,
             ErrorCode::kInvalidArgument, "denoise_step: room for ", std::min(results, a.rows.logits_rows.numel()),
             " rows of logits, expected ", requests * a.block_size);
  check_shape("denoise_step: results", a.results, {2, results, kResultWords});
  HR_REQUIRE(a.report.numel() >= static_cast<int64_t>(sizeof(DenoiseReport)), ErrorCode::kInvalidArgument,
             "denoise_step: the report has ", a.report.numel(), " bytes, expected ", sizeof(DenoiseReport));
}

}  // namespace headrace
