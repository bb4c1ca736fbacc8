// How kernels share out the work of one call: the CPU's over its threads, a GPU's over clusters of blocks or warps.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <tuple>
#include <utility>

#include "headrace/ops/cpu/paged_attention_plan.h"
#include "headrace/ops/cuda/attention/sm80/fmha_plan.h"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode_plan.h"
#include "headrace/ops/cuda/attention/sm90/decode_short_kv/short_kv.h"
#include "headrace/ops/cuda/attention/sm90/even_splits.h"
#include "headrace/ops/cuda/attention/sm90/fmha_plan.h"
#include "headrace/ops/cuda/attention/sm90/kv_heads_per_tile.h"

namespace headrace {
namespace {

// The ranges of keys that the tasks of one request take, of every head.
std::set<std::pair<long, long>> key_ranges(int32_t rows, int32_t context, const OpContext& op) {
  constexpr int64_t kHeads = 8, kKvHeads = 2, kDim = 32, kPageSize = 256;
  const Tensor q(DType::kF32, {rows, kHeads, kDim}), k(DType::kF32, {rows, kKvHeads, kDim});
  const Tensor pool(DType::kF32, {2, kKvHeads, kPageSize, kDim});
  const Tensor table(DType::kI32, {1, (context + rows) / kPageSize + 1});
  std::fill_n(table.data_as<int32_t>(), table.numel(), 1);  // nothing is read
  const KeySpan span{
      .q_len = rows, .ctx_len = context, .phys0 = context, .kind = KeySpan::Kind::kBlock, .block_size = rows};
  const cpu::PagedAttentionPlan plan({.q = q,
                                      .k_new = k,
                                      .v_new = k,
                                      .kv = {.k = pool, .v = pool},
                                      .spans = std::span(&span, 1),
                                      .page_table = table,
                                      .out = q},
                                     op);
  std::set<std::pair<long, long>> ranges;
  for (long i = 0; i < plan.params().num_tasks; ++i) {
    ranges.insert({plan.params().tasks[i].k0, plan.params().tasks[i].k1});
  }
  return ranges;
}

TEST(PagedAttentionPlan, B16_AFewRowsOfALongContextAreSplitOverTheirKeys) {
  const auto ranges = key_ranges(4, 32 * 1024, {.threads = 2});  // a block of one request
  EXPECT_GE(ranges.size(), 16u);
  long end = 0;
  for (const auto& [begin, until] : ranges) {
    EXPECT_EQ(begin, end);
    EXPECT_GT(until, begin);
    end = until;
  }
  EXPECT_EQ(end, 32 * 1024 + 4);
  EXPECT_EQ(key_ranges(4, 32 * 1024, {.threads = 64}), ranges);  // by length alone: threads change no result
  EXPECT_EQ(key_ranges(4, 500, {.threads = 2}).size(), 1u);
}

// 264 blocks on 132 multiprocessors: a product of tiles and blocks does not fit into 32 bits from 16,268,815 tiles on.
TEST(EvenSplits, OfMoreTilesThan32BitsHoldProductsOfAreEvenAndCoverEveryTile) {
  constexpr unsigned kBlocks = 264;
  for (const unsigned tiles : {1u, 263u, 264u, 1000u, 16268814u, 16268816u, 200000000u, 4294967295u}) {
    const cuda::EvenSplits shares{.tiles = tiles, .blocks = kBlocks};
    EXPECT_EQ(shares.begin(0), 0u);
    EXPECT_EQ(shares.begin(kBlocks), tiles);
    EXPECT_EQ(shares.begin(kBlocks + 1), tiles);
    for (unsigned block = 0; block < kBlocks; ++block) {
      const unsigned begin = shares.begin(block), end = shares.begin(block + 1);
      ASSERT_LE(begin, end) << tiles;
      ASSERT_LE(end - begin, tiles / kBlocks + 1) << tiles;
      if (begin == end) continue;
      ASSERT_EQ(shares.block_of(begin), block) << tiles;
      ASSERT_EQ(shares.block_of(end - 1), block) << tiles;
    }
  }
}

// Heads of a prompt of `keys` keys that are taken together: 8 or `heads` of 128, in groups of four.
int together_of(int64_t keys, int heads = 8) {
  return cuda::heads_together({.kv_heads = heads, .bytes = keys * 512, .row_tiles = keys / 32}, 132);
}

TEST(AttentionOfPrompts, TakesAsManyHeadsTogetherAsTheL2HoldsKeysOf) {
  EXPECT_EQ(together_of(0), 8);
  EXPECT_EQ(together_of(2048), 8);
  EXPECT_EQ(together_of(5120), 8);
  EXPECT_EQ(together_of(5152), 4);
  EXPECT_EQ(together_of(8192), 4);
  EXPECT_EQ(together_of(16384), 2);
  EXPECT_EQ(together_of(32768), 1);
  EXPECT_EQ(together_of(1 << 20), 1);
  EXPECT_EQ(together_of(1 << 20, 1), 1);
  EXPECT_EQ(together_of(16384, 6), 2);
  EXPECT_EQ(together_of(16384, 7), 1);  // no divisor lies between
}

TEST(AttentionOfPrompts, TakesAsManyHeadsTogetherAsFillTheDeviceTwice) {
  const auto together_of_tiles = [](int64_t row_tiles) {
    return cuda::heads_together({.kv_heads = 8, .bytes = int64_t{1} << 30, .row_tiles = row_tiles}, 132);
  };
  EXPECT_EQ(together_of_tiles(251), 1);
  EXPECT_EQ(together_of_tiles(250), 2);
  EXPECT_EQ(together_of_tiles(63), 4);
  EXPECT_EQ(together_of_tiles(62), 8);
  EXPECT_EQ(together_of_tiles(1), 8);
}

using cuda::PoolElements;
using cuda::Sm90Plan;
using Sharing = Sm90Plan::Sharing;

// Requests of so many rows each, packed as (token, head of the group), with so many keys at most.
struct EqualRequests {
  int requests = 1, rows = 1, keys = 8192;
  int kernel_dim = 128, kv_heads = 8;
  PoolElements pool = PoolElements::kFloats;
};

cuda::Sm90Task task_of(const EqualRequests& of, Determinism determinism) {
  const auto tiles = [&](int rows) { return int64_t{of.requests} * ((of.rows + rows - 1) / rows); };
  return {.shape = {.min_rows = of.rows,
                    .max_rows = of.rows,
                    .requests = of.requests,
                    .tiles16 = tiles(16),
                    .tiles64 = tiles(64),
                    .tiles128 = tiles(128),
                    .tiles192 = tiles(192),
                    .max_keys = of.keys,
                    .seen_keys = of.keys,
                    .determinism = determinism},
          .pool = of.pool,
          .kernel_dim = of.kernel_dim,
          .kv_heads = of.kv_heads};
}

Sm90Plan fast_plan(const EqualRequests& of) { return cuda::plan_sm90(task_of(of, Determinism::kFast), 132); }
Sm90Plan strict_sm90_plan(const EqualRequests& of) { return cuda::plan_sm90(task_of(of, Determinism::kStrict), 132); }

TEST(HopperAttentionPlan, FewRowsOfOneRequestShareTheirKeysAndThoseOfSeveralAreCutInShortGroups) {
  const Sm90Plan shares = fast_plan({.rows = 4});
  EXPECT_EQ(shares.sharing, Sharing::kEvenSplits);
  EXPECT_EQ(std::tuple(shares.rows, shares.kv_warpgroups, shares.keys), std::tuple(64, 2, 64));
  const Sm90Plan codes = fast_plan({.requests = 16, .rows = 17, .pool = PoolElements::kFp8});
  EXPECT_EQ(std::pair(codes.sharing, codes.kv_warpgroups), std::pair(Sharing::kEvenSplits, 1));
  const Sm90Plan few = fast_plan({.requests = 16, .rows = 4});
  EXPECT_EQ(few.sharing, Sharing::kFixedSplits);
  EXPECT_EQ(std::tuple(few.kv_warpgroups, few.keys, few.split_keys, few.groups), std::tuple(1, 128, 1024, 8));
  EXPECT_TRUE(few.needs_room);
  EXPECT_EQ(few.long_split_keys, 0) << "rows alone take nearly all of the device";
  EXPECT_EQ(fast_plan({.requests = 8, .rows = 4}).long_split_keys, 4096);
  EXPECT_FALSE(few.finer_end);
  EXPECT_EQ(fast_plan({.requests = 2, .rows = 4, .kernel_dim = 256}).value_parts, 1);
  EXPECT_EQ(fast_plan({.requests = 2, .rows = 4, .keys = 32768}).split_keys, 1024);
  EXPECT_EQ(fast_plan({.requests = 2, .rows = 4, .keys = 32769}).split_keys, 2048);
  cuda::Sm90Task cramped = task_of({.requests = 16, .rows = 4}, Determinism::kFast);
  cramped.room_for_splits = false;
  EXPECT_EQ(cuda::plan_sm90(cramped, 132).sharing, Sharing::kEvenSplits);
  EXPECT_EQ(fast_plan({.rows = 8, .kernel_dim = 256}).keys, 32);
  const Sm90Plan groups = fast_plan({.requests = 17, .rows = 4});
  EXPECT_EQ(groups.sharing, Sharing::kFixedSplits);
  EXPECT_EQ(std::tuple(groups.kv_warpgroups, groups.keys, groups.split_keys), std::tuple(1, 128, 4096));
  EXPECT_EQ(groups.groups, 2);
  EXPECT_TRUE(groups.finer_end);
  EXPECT_EQ(fast_plan({.requests = 33, .rows = 4, .kv_heads = 4}).sharing, Sharing::kFixedSplits);  // a piece for each
  EXPECT_EQ(fast_plan({.requests = 17, .rows = 4, .keys = 4096}).groups, 1);
  EXPECT_EQ(fast_plan({.requests = 17, .rows = 4, .keys = 4097}).groups, 2);
}

TEST(HopperAttentionPlan, ManyShortPiecesAreTwoToAMultiprocessorInFastMode) {
  EXPECT_FALSE(fast_plan({.requests = 65, .rows = 4}).crowded);
  EXPECT_TRUE(fast_plan({.requests = 66, .rows = 4}).crowded);
  EXPECT_EQ(fast_plan({.requests = 66, .rows = 4}).keys, cuda::kCrowdedKeys);
  EXPECT_FALSE(strict_sm90_plan({.requests = 66, .rows = 4}).crowded);
  EXPECT_FALSE(fast_plan({.requests = 66, .rows = 4, .kernel_dim = 256}).crowded);
  EXPECT_FALSE(fast_plan({.requests = 66, .rows = 4, .pool = PoolElements::kFp8}).crowded);
}

TEST(HopperAttentionPlan, FewRowsOverCodesHaveTheirKernel) {
  const auto plan = [](int requests, int rows, int dim = 128) {
    return fast_plan({.requests = requests, .rows = rows, .kernel_dim = dim, .pool = PoolElements::kFp8});
  };
  EXPECT_EQ(plan(66, 16).fp8_decode_resident, 2);
  EXPECT_EQ(plan(66, 17).fp8_decode_resident, 0);
  EXPECT_EQ(fast_plan({.requests = 66, .rows = 4}).fp8_decode_resident, 0);
  cuda::Sm90Task capped = task_of({.requests = 66, .rows = 4, .pool = PoolElements::kFp8}, Determinism::kFast);
  capped.fp8_decode = false;
  EXPECT_EQ(cuda::plan_sm90(capped, 132).fp8_decode_resident, 0) << "it has no soft cap";
  EXPECT_EQ(std::tuple(plan(66, 4).keys, plan(66, 4).split_keys, plan(66, 4).finer_end), std::tuple(128, 2048, false));
  EXPECT_EQ(std::tuple(plan(66, 4).rows, plan(66, 8).rows, plan(66, 9).rows), std::tuple(8, 8, 16));
  EXPECT_EQ(std::tuple(plan(66, 4, 64).keys, plan(66, 4, 64).split_keys, plan(66, 4, 64).finer_end),
            std::tuple(128, 2048, false));
  EXPECT_EQ(plan(66, 4, 256).keys, 64);
  EXPECT_EQ(plan(1, 4).sharing, Sharing::kEvenSplits);
  EXPECT_EQ(std::pair(plan(16, 4).sharing, plan(16, 4).split_keys), std::pair(Sharing::kFixedSplits, 1024));
}

TEST(HopperAttentionPlan, FewRowsOverFewCodesAreWhole) {
  const auto sharing = [](int keys, int dim, PoolElements pool = PoolElements::kFp8) {
    return fast_plan({.rows = 4, .keys = keys, .kernel_dim = dim, .pool = pool}).sharing;
  };
  EXPECT_EQ(sharing(512, 128), Sharing::kRows);
  EXPECT_EQ(sharing(513, 128), Sharing::kEvenSplits);
  EXPECT_EQ(sharing(256, 256), Sharing::kRows);
  EXPECT_EQ(sharing(257, 256), Sharing::kEvenSplits);
  EXPECT_EQ(sharing(512, 128, PoolElements::kFloats), Sharing::kEvenSplits);
  // A pool that has room for more does not matter where the host knows better.
  cuda::Sm90Task task =
      task_of({.requests = 4, .rows = 4, .keys = 2048, .pool = PoolElements::kFp8}, Determinism::kStrict);
  task.shape.max_keys = 1 << 20;
  EXPECT_EQ(cuda::plan_sm90(task, 132).groups, 1);
  task.shape.seen_keys = 2049;
  EXPECT_EQ(cuda::plan_sm90(task, 132).groups, 512);
}

TEST(HopperAttentionPlan, FewRowsOverCodesHaveAllOfAMultiprocessorWhereThereIsAPieceForEach) {
  const auto resident = [](Determinism determinism, int requests, int keys, int dim = 128) {
    return cuda::plan_sm90(
               task_of({.requests = requests, .rows = 4, .keys = keys, .kernel_dim = dim, .pool = PoolElements::kFp8},
                       determinism),
               132)
        .fp8_decode_resident;
  };
  EXPECT_EQ(resident(Determinism::kStrict, 8, 4096), 1);  // 128 groups
  EXPECT_EQ(resident(Determinism::kStrict, 8, 4097), 2);  // 192
  EXPECT_EQ(resident(Determinism::kStrict, 16, 768), 2);  // six tiles
  EXPECT_EQ(resident(Determinism::kStrict, 16, 769), 1);
  EXPECT_EQ(resident(Determinism::kStrict, 4, 1 << 20), 1);
  EXPECT_EQ(resident(Determinism::kStrict, 5, 1 << 20), 2);
  EXPECT_EQ(resident(Determinism::kStrict, 4, 1 << 20, 64), 2);
  EXPECT_EQ(resident(Determinism::kFast, 4, 2048), 1);  // 64 groups of 1024
  EXPECT_EQ(resident(Determinism::kFast, 8, 4096), 2);  // 256
  EXPECT_EQ(resident(Determinism::kFast, 1, 32768), 2) << "equal shares";
  cuda::Sm90Task graph = task_of({.rows = 4, .keys = 4096, .pool = PoolElements::kFp8}, Determinism::kStrict);
  graph.shape.tiles64 = 65;  // with room for 64 requests
  EXPECT_EQ(cuda::plan_sm90(graph, 132).fp8_decode_resident, 1);
}

// Strict mode cuts their keys as it cuts those of many rows, which have another kernel.
TEST(HopperAttentionPlan, StrictFewRowsOverCodesHaveTilesAndGroupsOfManyRows) {
  for (const int dim : {64, 128, 256}) {
    for (const int requests : {1, 16, 66, 500}) {
      const auto plan = [&](int rows) {
        return strict_sm90_plan({.requests = requests, .rows = rows, .kernel_dim = dim, .pool = PoolElements::kFp8});
      };
      const Sm90Plan few = plan(4);
      EXPECT_GT(few.fp8_decode_resident, 0);
      EXPECT_FALSE(few.finer_end);
      for (const int rows : {17, 64, 700}) {
        EXPECT_EQ(plan(rows).fp8_decode_resident, 0);
        EXPECT_EQ(std::tuple(few.keys, few.split_keys), std::tuple(plan(rows).keys, plan(rows).split_keys));
      }
    }
  }
}

// What strict mode's sums depend on may not change with the number of requests, or of multiprocessors.
TEST(HopperAttentionPlan, StrictGroupsAndTilesAreTheSameInEveryBatch) {
  for (const int requests : {1, 16, 17, 66, 500}) {
    for (const int kernel_dim : {64, 128, 256}) {
      for (const int sms : {78, 132}) {
        const Sm90Plan plan = cuda::plan_sm90(
            task_of({.requests = requests, .rows = 4, .kernel_dim = kernel_dim}, Determinism::kStrict), sms);
        EXPECT_EQ(plan.sharing, Sharing::kFixedSplits);
        EXPECT_EQ(std::tuple(plan.rows, plan.kv_warpgroups, plan.keys),
                  std::tuple(64, 1, kernel_dim == 256 ? 64 : 128));
        EXPECT_EQ(plan.split_keys, 4096);
        EXPECT_FALSE(plan.finer_end);
      }
    }
  }
  EXPECT_EQ(strict_sm90_plan({.rows = 4, .pool = PoolElements::kFp8}).split_keys, 2048);
  EXPECT_EQ(strict_sm90_plan({.rows = 4, .pool = PoolElements::kFp8}).groups, 4);
}

TEST(HopperAttentionPlan, TwoBlocksTakeTheColumnsOfFewLongHeads) {
  const auto parts = [](int kv_heads, int dim, PoolElements pool) {
    return strict_sm90_plan({.rows = 8, .kernel_dim = dim, .kv_heads = kv_heads, .pool = pool}).value_parts;
  };
  EXPECT_EQ(parts(33, 256, PoolElements::kFloats), 2);
  EXPECT_EQ(parts(34, 256, PoolElements::kFloats), 1);
  EXPECT_EQ(parts(2, 128, PoolElements::kFloats), 1);
  EXPECT_EQ(parts(2, 256, PoolElements::kFp8), 1);
  EXPECT_EQ(strict_sm90_plan({.rows = 65, .kernel_dim = 256, .kv_heads = 2}).value_parts, 1);
}

TEST(HopperAttentionPlan, PromptsThatFillTheDeviceAreWholeRows) {
  const Sm90Plan prompt = fast_plan({.rows = 8192});  // 64 tiles of 128
  EXPECT_EQ(prompt.sharing, Sharing::kRows);
  EXPECT_EQ(std::pair(prompt.rows, prompt.keys), std::pair(128, 128));
  EXPECT_EQ(fast_plan({.rows = 8192, .kernel_dim = 64}).rows, 192);
  EXPECT_EQ(fast_plan({.rows = 8192, .kernel_dim = 64, .pool = PoolElements::kFp8}).rows, 128);
  EXPECT_EQ(fast_plan({.rows = 17 * 128}).sharing, Sharing::kRows);
  EXPECT_EQ(fast_plan({.rows = 16 * 128}).sharing, Sharing::kEvenSplits);
  EXPECT_EQ(fast_plan({.rows = 16 * 128}).kv_warpgroups, 1);
  EXPECT_EQ(strict_sm90_plan({.rows = 33 * 128}).groups, 1);  // two pieces for each multiprocessor
  EXPECT_EQ(strict_sm90_plan({.rows = 32 * 128}).groups, 2);
}

TEST(HopperAttentionPlan, StrictPromptsOverMoreKeysThanAGroupHaveTheirKernel) {
  EXPECT_FALSE(strict_sm90_plan({.rows = 8192, .keys = 4096}).many_splits);
  EXPECT_TRUE(strict_sm90_plan({.rows = 8192, .keys = 4097}).many_splits);
  EXPECT_FALSE(strict_sm90_plan({.rows = 32 * 128, .keys = 4097}).many_splits) << "pieces of a group each";
  EXPECT_TRUE(strict_sm90_plan({.rows = 8192, .keys = 2049, .pool = PoolElements::kFp8}).many_splits);
  EXPECT_FALSE(strict_sm90_plan({.rows = 64, .keys = 4097}).many_splits);
  EXPECT_FALSE(fast_plan({.rows = 8192, .keys = 4097}).many_splits);
}

TEST(HopperAttentionPlan, LongContextsBesidePromptsAreCut) {
  const auto mixed = [](int min_rows, int keys, PoolElements pool = PoolElements::kFloats) {
    cuda::Sm90Task task = task_of({.requests = 2, .rows = 8192, .keys = keys, .pool = pool}, Determinism::kFast);
    task.shape.min_rows = min_rows;
    return cuda::plan_sm90(task, 132);
  };
  EXPECT_TRUE(mixed(16, 16385).cuts_long_rows);
  EXPECT_FALSE(mixed(17, 16385).cuts_long_rows);
  EXPECT_FALSE(mixed(16, 16384).cuts_long_rows);
  EXPECT_FALSE(mixed(16, 16385, PoolElements::kFp8).cuts_long_rows);
  EXPECT_TRUE(mixed(64, 100).both_ends);
  EXPECT_FALSE(mixed(65, 100).both_ends);
  EXPECT_FALSE(fast_plan({.rows = 4, .keys = 100000}).cuts_long_rows);  // nothing is beside them
}

// On 132 multiprocessors with room for two blocks each.
int parts_of(int64_t blocks, int max_keys, int64_t fits = 1000, Determinism determinism = Determinism::kFast) {
  return cuda::mma_splits(
      {.blocks = blocks, .room = 264, .max_keys = max_keys, .fits = fits, .determinism = determinism});
}

TEST(BaselineAttentionPlan, PartsFillTheDeviceAsFarAsKeysGo) {
  EXPECT_EQ(parts_of(8, 32768), 33);
  EXPECT_EQ(parts_of(132, 32768), 2);
  EXPECT_EQ(parts_of(133, 32768), 1);
  EXPECT_EQ(parts_of(1, 1 << 20), 128);
  EXPECT_EQ(parts_of(8, 256), 1);  // four tiles, which are not cut
  EXPECT_EQ(parts_of(8, 257), 2);
}

TEST(BaselineAttentionPlan, StrictPartsAreTheGroupsOfKeys) {
  const auto groups = [](int64_t blocks, int keys) { return parts_of(blocks, keys, 1000, Determinism::kStrict); };
  EXPECT_EQ(groups(8, 1023), 2);  // rows may begin anywhere in a tile
  EXPECT_EQ(groups(8, 960), 1);
  EXPECT_EQ(groups(8, 32768), 33);
  EXPECT_EQ(groups(132, 32768), 33);
  EXPECT_EQ(groups(133, 32768), 1);
}

TEST(BaselineAttentionPlan, W30_PartsAreAsManyAsScratchMemoryHolds) {
  for (const int keys : {1 << 14, 1 << 20, 1 << 30}) {
    EXPECT_EQ(parts_of(8, keys, 7), 7);
    EXPECT_EQ(parts_of(8, keys, 1), 1);
    EXPECT_EQ(parts_of(8, keys, 16, Determinism::kStrict), 1);
  }
  EXPECT_EQ(parts_of(8, 1 << 14, 17, Determinism::kStrict), 17);
}

// Keys of warp-per-head decode, of CTA-per-head decode, and of a graph for short contexts.
std::tuple<int, int, int> short_plan(const cuda::ShortTask& task) {
  const cuda::ShortPlan plan = cuda::plan_short(task, 132);
  return {plan.warp_keys, plan.cta_keys, plan.bucket_keys()};
}
constexpr std::tuple kNotShort{0, 0, 0};

TEST(ShortKVDecode, IsByCtaInBothModes) {
  for (const bool strict : {false, true}) {
    for (const int64_t pieces : {8, 128, 264, 791}) {
      EXPECT_EQ(short_plan({.work_tiles = pieces, .max_rows = 32, .dim = 128, .strict = strict, .contiguous = true}),
                std::tuple(0, 2048, 2048))
          << pieces;
    }
    for (const int64_t pieces : {8, 791, 792, 5000}) {
      EXPECT_EQ(short_plan({.work_tiles = pieces, .max_rows = 16, .dim = 256, .strict = strict, .contiguous = true}),
                std::tuple(0, 2048, 2048))
          << pieces;
    }
    EXPECT_EQ(short_plan({.work_tiles = 128, .max_rows = 17, .dim = 256, .strict = strict, .contiguous = true}),
              kNotShort);
    EXPECT_EQ(short_plan({.work_tiles = 128, .max_rows = 33, .dim = 128, .strict = strict, .contiguous = true}),
              kNotShort);
    EXPECT_EQ(short_plan({.work_tiles = 128, .max_rows = 4, .dim = 64, .strict = strict, .contiguous = true}),
              kNotShort);
  }
}

TEST(ShortKVDecode, IsByWarpWhereThereAreManyRequestsOfFewKeys) {
  const auto plan = [](int rows, bool strict) {
    return short_plan({.work_tiles = 792, .max_rows = rows, .dim = 128, .strict = strict, .contiguous = true});
  };
  EXPECT_EQ(plan(32, false), std::tuple(640, 2048, 640));
  EXPECT_EQ(plan(16, true), std::tuple(384, 2048, 2048));
  EXPECT_EQ(plan(17, true), std::tuple(0, 2048, 2048));
  EXPECT_EQ(plan(33, false), std::tuple(640, 0, 640));
}

TEST(ShortKVDecode, IsByWarpForOtherKeysWhereRequestsFillTheDevice) {
  for (const int rows : {1, 16, 40}) {
    EXPECT_EQ(short_plan({.work_tiles = 264, .max_rows = rows, .dim = 128}), std::tuple(640, 0, 640)) << rows;
    EXPECT_EQ(short_plan({.work_tiles = 264, .max_rows = rows, .dim = 72}), std::tuple(640, 0, 640)) << rows;
  }
  EXPECT_EQ(short_plan({.work_tiles = 264, .max_rows = 40, .dim = 128, .contiguous = true}), std::tuple(640, 0, 640));
  EXPECT_EQ(short_plan({.work_tiles = 263, .max_rows = 36, .dim = 128}), kNotShort);
  EXPECT_EQ(short_plan({.work_tiles = 264, .max_rows = 41, .dim = 128}), kNotShort);
  EXPECT_EQ(short_plan({.work_tiles = 264, .max_rows = 36, .dim = 64}), kNotShort);
  EXPECT_EQ(short_plan({.work_tiles = 264, .max_rows = 36, .dim = 256}), kNotShort);
}

TEST(ShortKVDecode, BatchInvariantModeHasFewerKeysAndMoreInTheMiddle) {
  const auto strict = [](int64_t pieces, int rows) {
    return short_plan({.work_tiles = pieces, .max_rows = rows, .dim = 128, .strict = true});
  };
  EXPECT_EQ(strict(197, 4), kNotShort);
  EXPECT_EQ(strict(198, 4), std::tuple(640, 0, 640));
  EXPECT_EQ(strict(396, 32), std::tuple(2048, 0, 2048));
  EXPECT_EQ(strict(396, 33), std::tuple(384, 0, 384));
  EXPECT_EQ(strict(792, 4), std::tuple(640, 0, 640));
}

// CTAs of a cluster, then clusters of a row tile.
using Clusters = std::pair<int, int>;

cuda::ClusterDecodeTask cluster_task(int64_t work_tiles, int seen_keys, int kernel_dim, int64_t row_tiles) {
  return {.row_tiles = row_tiles,
          .work_tiles = work_tiles,
          .seen_keys = seen_keys,
          .tile_keys = cuda::tile_keys(kernel_dim, 1),
          .split_keys = cuda::kSm90SplitKeys};
}

Clusters fixed_clusters(int64_t work_tiles, int seen_keys, int kernel_dim, int64_t row_tiles = 1) {
  const cuda::ClusterDecodePlan plan = cuda::fixed_cluster_decode_plan(
      cluster_task(work_tiles, seen_keys, kernel_dim, row_tiles), cuda::most_cluster_size(kernel_dim), /*num_sms=*/132);
  return {plan.cluster_size, plan.clusters};
}

TEST(ClusterDecode, HasTheLargestClustersThatFindRoom) {
  EXPECT_EQ(fixed_clusters(8, 64, 128), Clusters(2, 1));  // a round of one tile
  EXPECT_EQ(fixed_clusters(8, 257, 128), Clusters(4, 1));
  EXPECT_EQ(fixed_clusters(8, 4096, 128), Clusters(4, 1));
  EXPECT_EQ(fixed_clusters(8, 12288, 64), Clusters(4, 3));
  EXPECT_EQ(fixed_clusters(8, 16384, 128), Clusters(2, 4));  // 32 clusters of four do not find room
  EXPECT_EQ(fixed_clusters(8, 32768, 128), Clusters(2, 8));
  EXPECT_EQ(fixed_clusters(2, 4096, 256), Clusters(8, 1));
  EXPECT_EQ(fixed_clusters(2, 7 * 4096, 256), Clusters(8, 7));
  EXPECT_EQ(fixed_clusters(2, 8 * 4096, 256), Clusters(4, 8));
  EXPECT_EQ(fixed_clusters(2, 131072, 256), Clusters(2, 32));
  EXPECT_EQ(fixed_clusters(66, 320, 128), Clusters(2, 1));
  EXPECT_EQ(fixed_clusters(67, 320, 128), Clusters(0, 1));
  EXPECT_EQ(fixed_clusters(16, 16385, 128, 2), Clusters(0, 1));
}

TEST(ClusterDecode, OfOneRowTileHasSeveralSplitsPerClusterWhereNotAllFindRoom) {
  EXPECT_EQ(fixed_clusters(8, 32769, 128), Clusters(2, 8));  // nine splits
  EXPECT_EQ(fixed_clusters(8, 131072, 128), Clusters(2, 8));
  EXPECT_EQ(fixed_clusters(2, 34 * 4096, 256), Clusters(2, 33));
  EXPECT_EQ(fixed_clusters(66, 4097, 64), Clusters(2, 1));
  EXPECT_EQ(fixed_clusters(67, 4097, 64), Clusters(0, 1));
}

TEST(ClusterDecode, FixedSplitsHaveRoomForUpToKeysWithRoom) {
  for (const int64_t work_tiles : {16, 32, 64}) {
    const int keys = cuda::keys_with_room(work_tiles, /*cluster_size=*/2, cuda::kSm90SplitKeys, /*num_sms=*/132);
    EXPECT_EQ(keys, 262144 / work_tiles);
    EXPECT_EQ(fixed_clusters(work_tiles, keys, 128, 2).first, 2);
    EXPECT_EQ(fixed_clusters(work_tiles, keys + 1, 128, 2).first, 0);
  }
  EXPECT_EQ(cuda::keys_with_room(67, 2, 4096, 132), 0);
}

Clusters even_clusters(int64_t kv_heads, int kernel_dim) {
  const cuda::ClusterDecodePlan plan =
      cuda::even_cluster_decode_plan(kv_heads, cuda::most_cluster_size(kernel_dim), /*num_sms=*/132);
  return {plan.cluster_size, plan.clusters};
}

TEST(ClusterDecode, EvenSplitsFillTheDeviceOrAreNone) {
  for (const int dim : {64, 128, 256}) {
    EXPECT_EQ(even_clusters(2, dim), Clusters(4, 15));  // 33 clusters of two are more than one step merges
    EXPECT_EQ(even_clusters(4, dim), Clusters(2, 16));
    EXPECT_EQ(even_clusters(8, dim), Clusters(2, 8));
    EXPECT_EQ(even_clusters(32, dim), Clusters(2, 2));
    EXPECT_EQ(even_clusters(33, dim), Clusters(2, 2));
    EXPECT_EQ(even_clusters(40, dim), Clusters(0, 1));  // 80 CTAs
    EXPECT_EQ(even_clusters(60, dim), Clusters(2, 1));
    EXPECT_EQ(even_clusters(67, dim), Clusters(0, 1));
  }
  EXPECT_EQ(even_clusters(1, 128), Clusters(4, 30));  // there are no larger clusters
  EXPECT_EQ(even_clusters(1, 256), Clusters(8, 15));
}

}  // namespace
}  // namespace headrace
