// Which attention kernel a call gets, and for which KV lengths a graph of its own is captured.
#include <gtest/gtest.h>

#include <vector>

#include "headrace/ops/cuda/attention/attention_problem.h"

namespace headrace {
namespace {

using cuda::AttentionFamilies;
using cuda::AttentionProblem;
using enum cuda::AttentionFamily;

// Equal requests of 32 query heads and 8 KV heads of 128 on an H200.
struct Requests {
  int32_t count = 1, tokens = 1, keys = 512;
  int group = 4;
  Determinism mode = Determinism::kFast;
};

AttentionProblem problem_of(const Requests& of) {
  std::vector<KeySpan> spans;
  for (int32_t i = 0; i < of.count; ++i)
    spans.push_back({.q_off = i * of.tokens, .q_len = of.tokens, .ctx_len = of.keys - of.tokens});
  return {.kv_heads = 8, .head_dim = 128, .v_head_dim = 128, .shape = cuda::shape_of(spans, of.group, of.mode)};
}

cuda::AttentionFamily family_of(const AttentionProblem& problem, const AttentionFamilies& leave_out = {}) {
  return choose_attention(problem, cuda::kH200, leave_out).family;
}
cuda::AttentionFamily family_for(const Requests& of) { return family_of(problem_of(of)); }

TEST(ChooseAttention, RunsFewRowsOfOneRequestInClusters) {
  EXPECT_EQ(family_for({.keys = 1}), kClusterDecode);
  EXPECT_EQ(family_for({.tokens = 8, .keys = 2048}), kClusterDecode);  // 32 rows
  EXPECT_EQ(family_for({.tokens = 8, .keys = 2049}), kFmhaSm90);       // two row tiles: no even splits
  EXPECT_EQ(family_for({.tokens = 9, .keys = 2048}), kFmhaSm90);       // 36 rows, and no requests to fill the device
  EXPECT_EQ(family_for({.tokens = 4, .keys = 100000}), kClusterDecode);
  EXPECT_EQ(family_for({.count = 2, .tokens = 2, .keys = 4096}), kClusterDecode);
  EXPECT_EQ(family_for({.count = 8, .keys = 4096}), kClusterDecode);
  EXPECT_EQ(family_for({.count = 9, .keys = 4096}), kFmhaSm90) << "72 clusters of two do not find room";
}

TEST(ChooseAttention, DividesKeysOfOneRequestEvenlyInDefaultModeAlone) {
  const auto splits = [](int32_t tokens, int32_t keys, Determinism mode) {
    return choose_attention(problem_of({.tokens = tokens, .keys = keys, .mode = mode}), cuda::kH200).cluster.splits;
  };
  EXPECT_EQ(splits(2, 4096, Determinism::kFast), cuda::KVSplits::kFixed);
  EXPECT_EQ(splits(2, 4097, Determinism::kFast), cuda::KVSplits::kEven);
  EXPECT_EQ(splits(4, 2048, Determinism::kFast), cuda::KVSplits::kFixed);
  EXPECT_EQ(splits(4, 2049, Determinism::kFast), cuda::KVSplits::kEven);
  EXPECT_EQ(splits(2, 100000, Determinism::kStrict), cuda::KVSplits::kFixed);
}

// Batch-invariant mode may choose by the batch, because these families have the same bits. Others have not.
TEST(ChooseAttention, BatchInvariantModeHasFamiliesOfTheSameBitsAlone) {
  for (const int32_t count : {1, 8, 64, 99, 300}) {
    for (const int32_t tokens : {1, 4, 8, 9, 16, 17, 300}) {
      for (const int32_t keys : {400, 2048, 4097, 40000}) {
        const auto config = choose_attention(
            problem_of({.count = count, .tokens = tokens, .keys = keys, .mode = Determinism::kStrict}), cuda::kH200);
        EXPECT_TRUE(config.family == kClusterDecode || config.family == kShortKV || config.family == kFmhaSm90);
        EXPECT_EQ(config.cluster.splits, cuda::KVSplits::kFixed);
        if (config.family == kFmhaSm90) {
          EXPECT_EQ(config.fmha.split_keys, cuda::kSm90SplitKeys);
        }
      }
    }
  }
}

TEST(ChooseAttention, RunsManyShortRequestsByCtaOrWarp) {
  const auto schedule = [](int32_t count, int32_t keys) {
    const auto config = choose_attention(problem_of({.count = count, .keys = keys}), cuda::kH200);
    EXPECT_EQ(config.family, kShortKV);
    return config.schedule;
  };
  EXPECT_EQ(schedule(98, 512), cuda::ShortKVSchedule::kCtaPerHead);
  EXPECT_EQ(schedule(99, 640), cuda::ShortKVSchedule::kWarpPerHead);
  EXPECT_EQ(schedule(99, 641), cuda::ShortKVSchedule::kCtaPerHead);
  EXPECT_EQ(family_for({.count = 99, .keys = 2049}), kFmhaSm90);
  AttentionProblem small_pages = problem_of({.count = 64, .keys = 1025});
  small_pages.page_size = 32;
  EXPECT_EQ(family_of(small_pages), kFmhaSm90) << "a lane has one page number";
}

// Windows, soft caps and encoder keys have a warp per head, or no short-KV decode.
TEST(ChooseAttention, ServesEveryMask) {
  for (bool AttentionProblem::*mask :
       {&AttentionProblem::window, &AttentionProblem::soft_cap, &AttentionProblem::encoder}) {
    AttentionProblem problem = problem_of({.count = 64});
    problem.*mask = true;
    EXPECT_EQ(choose_attention(problem, cuda::kH200).schedule, cuda::ShortKVSchedule::kWarpPerHead);
    problem = problem_of({.count = 20});
    problem.*mask = true;
    EXPECT_EQ(family_of(problem), kFmhaSm90);
    problem = problem_of({});
    problem.*mask = true;
    EXPECT_EQ(family_of(problem), kClusterDecode);
  }
}

TEST(ChooseAttention, RunsFp8ByFp8DecodeOrFmha) {
  const auto fp8 = [](int32_t tokens, bool soft_cap) {
    AttentionProblem problem = problem_of({.tokens = tokens});
    problem.kv_dtype = DType::kE4M3, problem.soft_cap = soft_cap;
    return family_of(problem);
  };
  EXPECT_EQ(fp8(4, false), kFp8Decode);
  EXPECT_EQ(fp8(5, false), kFmhaSm90);
  EXPECT_EQ(fp8(4, true), kFmhaSm90);
}

TEST(ChooseAttention, FallsBackToOtherKernelsWhereTmaOrTensorCoresDoNotFit) {
  const AttentionProblem decode = problem_of({});
  cuda::DeviceProperties sm80 = cuda::kH200;
  sm80.arch = 80;
  EXPECT_EQ(choose_attention(decode, sm80).family, kFmhaSm80);
  const auto changed = [&](auto change) {
    AttentionProblem problem = decode;
    change(problem);
    return family_of(problem);
  };
  EXPECT_EQ(changed([](auto& p) { p.layout = AttentionProblem::Layout::kVec16; }), kFmhaSm80);
  EXPECT_EQ(changed([](auto& p) { p.layout = AttentionProblem::Layout::kAny; }), kSimt);
  EXPECT_EQ(changed([](auto& p) { p.page_size = 4, p.kv_dtype = DType::kE4M3; }), kFmhaSm80);
  EXPECT_EQ(changed([](auto& p) { p.positive_scale = false; }), kFmhaSm80);
  EXPECT_EQ(changed([](auto& p) { p.q_dtype = p.kv_dtype = DType::kF32; }), kSimt);
  EXPECT_EQ(changed([](auto& p) { p.head_dim = 100; }), kSimt);
  EXPECT_EQ(changed([](auto& p) { p.head_dim = 72, p.kv_dtype = DType::kE4M3; }), kFp8Decode);
  EXPECT_EQ(changed([](auto& p) { p.head_dim = 264; }), kSimt);
}

// Pages that TMA cannot load, keys without a pool, and new keys beside it, where there are many.
TEST(ChooseAttention, GathersKeysThatTmaCannotLoad) {
  const auto gathers = [](auto change) {
    AttentionProblem problem = problem_of({.tokens = 512});
    change(problem);
    const auto config = choose_attention(problem, cuda::kH200);
    EXPECT_EQ(config.family, kFmhaSm90);
    EXPECT_EQ(to_string(config).ends_with(", rows gathered"), config.task.gathers) << to_string(config);
    return config.task.gathers;
  };
  EXPECT_FALSE(gathers([](auto&) {}));
  EXPECT_FALSE(gathers([](auto& p) { p.page_size = 8; }));
  EXPECT_TRUE(gathers([](auto& p) { p.page_size = 4; }));
  EXPECT_TRUE(gathers([](auto& p) { p.pool = false, p.page_size = 1; }));
  EXPECT_FALSE(gathers([](auto& p) { p.new_tokens = 256; }));
  EXPECT_TRUE(gathers([](auto& p) { p.new_tokens = 257; }));
  EXPECT_FALSE(gathers([](auto& p) { p.new_tokens = 512, p.shape.seen_keys = 100000; })) << "few of all keys";
  EXPECT_FALSE(gathers([](auto& p) { p.new_tokens = 257, p.in_reach = false; }));
  EXPECT_FALSE(gathers([](auto& p) { p.new_tokens = 257, p.kv_dtype = DType::kE4M3; })) << "only TMA loads FP8";
}

TEST(ChooseAttention, NeedsScratchMemoryForClusters) {
  cuda::DeviceProperties small = cuda::kH200;
  small.scratch_bytes = 1 << 20;
  EXPECT_EQ(choose_attention(problem_of({.keys = 512}), small).family, kClusterDecode);
  EXPECT_EQ(choose_attention(problem_of({.keys = 100000, .mode = Determinism::kStrict}), small).family, kFmhaSm90);
}

TEST(ChooseAttention, TakesTheNextFamilyWhereOneIsLeftOut) {
  const AttentionProblem decode = problem_of({});
  EXPECT_EQ(family_of(decode, AttentionFamilies("cluster_decode")), kShortKV);
  EXPECT_EQ(family_of(decode, AttentionFamilies("cluster_decode,short_kv")), kFmhaSm90);
  EXPECT_EQ(family_of(decode, AttentionFamilies("cluster_decode,short_kv,fmha_sm90")), kFmhaSm80);
  EXPECT_EQ(family_of(decode, AttentionFamilies(cuda::attention_family_names())), kSimt);
  EXPECT_EQ(family_of(decode, AttentionFamilies("gemv,simt,,cluster")), kClusterDecode)
      << "other ops' names are skipped";
  AttentionProblem fp8 = decode;
  fp8.kv_dtype = DType::kE4M3;
  EXPECT_EQ(family_of(fp8, AttentionFamilies("fp8_decode")), kFmhaSm90);
  EXPECT_EQ(family_of(fp8, AttentionFamilies("fmha_sm90")), kFp8Decode);
}

TEST(ChooseAttention, PrintsItsConfiguration) {
  const auto text = [](const Requests& of) { return to_string(choose_attention(problem_of(of), cuda::kH200)); };
  EXPECT_EQ(text({.keys = 4096}), "cluster_decode: 1 cluster of 4 CTAs, fixed KV splits");
  EXPECT_EQ(text({.keys = 8192}), "cluster_decode: 8 clusters of 2 CTAs, even KV splits");
  EXPECT_EQ(text({.count = 64}), "short_kv: a CTA per KV head");
  EXPECT_EQ(text({.count = 128}), "short_kv: a warp per KV head");
  EXPECT_EQ(text({.count = 64, .keys = 8192}),
            "fmha_sm90: tiles of 64 rows x 128 keys, KV splits of 4096 keys, shorter ones last");
  EXPECT_EQ(text({.tokens = 8192, .keys = 8192}), "fmha_sm90: tiles of 128 rows x 128 keys, whole rows");
}

using Buckets = std::vector<int32_t>;
Buckets buckets_of(const Requests& of, const AttentionFamilies& leave_out = {}) {
  return kv_len_buckets(problem_of(of), cuda::kH200, leave_out);
}

TEST(KVLenBuckets, AreWhereClustersWouldBeLarger) {
  const auto strict = [](int32_t count, int32_t keys) {
    return buckets_of({.count = count, .keys = keys, .mode = Determinism::kStrict});
  };
  EXPECT_EQ(strict(1, 32768), (Buckets{12288}));  // clusters of four; of two for all
  EXPECT_EQ(strict(1, 12288), Buckets{});
  EXPECT_EQ(strict(2, 32768), (Buckets{2048, 4096, 16384}));  // none find room for all
}

TEST(KVLenBuckets, OfDefaultModeAreWhereFixedSplitsEnd) {
  EXPECT_EQ(buckets_of({.keys = 4096}), Buckets{});
  EXPECT_EQ(buckets_of({.keys = 4097}), (Buckets{4096}));
  EXPECT_EQ(buckets_of({.tokens = 4, .keys = 32768}), (Buckets{2048}));
}

TEST(KVLenBuckets, AreWhereShortKVDecodeWouldRun) {
  EXPECT_EQ(buckets_of({.count = 64, .keys = 2048}), Buckets{});
  EXPECT_EQ(buckets_of({.count = 64, .keys = 2049}), (Buckets{2048}));
  EXPECT_EQ(buckets_of({.count = 128, .keys = 32768}), (Buckets{640}));
  EXPECT_EQ(buckets_of({.count = 128, .keys = 32768}, AttentionFamilies("short_kv")), Buckets{});
}

TEST(KVLenBuckets, OfNoRowsAreNone) { EXPECT_EQ(buckets_of({.count = 0}), Buckets{}); }

}  // namespace
}  // namespace headrace
