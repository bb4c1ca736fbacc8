#include <numeric>
#include <string>

#include "headrace/core/error.h"
#include "headrace/decoding/block_buffer.h"

namespace headrace {
namespace {

// Sets another block size. Its sub-blocks keep the model's size, or take the largest that divides both.
void set_block_size(DiffusionInfo& info, int32_t size) {
  const bool parts = info.sub_block_size > 0 && info.sub_block_size < info.block_size;
  info.sub_block_size = parts ? std::gcd(size, info.sub_block_size) : size;
  info.block_size = size;
}

}  // namespace

DiffusionInfo diffusion_info(std::string_view strategy, const StrategyConfig& config) {
  DiffusionInfo info = config.model.value_or(DiffusionInfo{});
  if (config.mask_token_id) info.mask_token_id = config.mask_token_id;
  if (config.block_size) set_block_size(info, *config.block_size);
  HR_REQUIRE(
      info.mask_token_id, ErrorCode::kInvalidArgument, "strategy '", strategy, "': the model ",
      config.model ? "starts from noise and has no mask token" : "names no mask token; is it a diffusion model?");
  HR_REQUIRE(*info.mask_token_id >= 0, ErrorCode::kInvalidArgument, "strategy '", strategy, "': mask_token_id is ",
             *info.mask_token_id, ", expected 0 or more");
  HR_REQUIRE(info.block_size >= 1, ErrorCode::kInvalidArgument, "strategy '", strategy, "': the block size is ",
             info.block_size, ", expected 1 or more");
  HR_REQUIRE(config.num_blocks >= 1, ErrorCode::kInvalidArgument, "strategy '", strategy, "': it is to denoise ",
             config.num_blocks, " blocks at a time, expected 1 or more");
  return info;
}

}  // namespace headrace
