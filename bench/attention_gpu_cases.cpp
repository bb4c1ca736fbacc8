// The cases of docs/performance.md and docs/design/attention.md, and sizes that have no figure there.
#include "bench/attention_gpu_cases.h"

#include <algorithm>
#include <utility>

#include "headrace/core/error.h"

namespace headrace::bench {
namespace {

// Heads that no model of the tables has, and the smallest and the largest pages.
std::vector<AttentionCase> other_sizes() {
  std::vector<AttentionCase> all;
  const auto add = [&all](int32_t dim, int32_t page) {
    all.push_back({str(kAsked, "prefill 8192 32/8 d", dim), {0}, {8192}, 32, 8, dim, page});
    all.push_back({str(kAsked, "decode b64 8k d", dim), std::vector<int32_t>(64, 8191), std::vector<int32_t>(64, 1), 32,
                   8, dim, page});
  };
  for (const int32_t dim : {80, 96, 192}) add(dim, 64);
  for (const int32_t page : {1, 256}) add(128, page);
  return all;
}

}  // namespace

std::vector<AttentionCase> attention_gpu_cases() {
  std::vector<AttentionCase> all;
  const auto prefill = [&](int32_t n, int32_t heads, int32_t kv, int32_t dim) {
    all.push_back({"prefill " + std::to_string(n) + " " + std::to_string(heads) + "/" + std::to_string(kv) + " d" +
                       std::to_string(dim),
                   {0},
                   {n},
                   heads,
                   kv,
                   dim});
  };
  for (const int32_t n : {2048, 8192, 32768}) prefill(n, 32, 8, 128);
  for (const int32_t n : {2048, 8192, 32768}) prefill(n, 16, 2, 256);
  for (const int32_t n : {8192, 32768}) prefill(n, 32, 8, 64);
  const std::vector<int32_t> ones(64, 1);
  for (const int32_t page : {16, 64})
    all.push_back({"decode b64 8k", std::vector<int32_t>(64, 8191), ones, 32, 8, 128, page});
  all.push_back({"decode b128 8k", std::vector<int32_t>(128, 8191), std::vector<int32_t>(128, 1)});
  all.push_back({"decode b256 1k", std::vector<int32_t>(256, 1023), std::vector<int32_t>(256, 1)});
  all.push_back({"decode b1 32k", {32767}, {1}});
  all.push_back({"decode b1 128k d256", {131071}, {1}, 16, 2, 256});
  for (const int32_t k : {4, 8, 16, 64}) {
    all.push_back({"decode one " + std::to_string(k) + "k", {k * 1024 - 1}, {1}});
    all.push_back({"decode one d256 16/2 " + std::to_string(k) + "k", {k * 1024 - 1}, {1}, 16, 2, 256});
  }
  for (const int32_t most : {32, 128}) {
    for (const int32_t k : {1, 4, 16}) {
      AttentionCase& graph = all.emplace_back(AttentionCase{
          "decode in a graph for " + std::to_string(most) + "k: " + std::to_string(k) + "k", {k * 1024 - 1}, {1}});
      graph.most_keys = most * 1024;
    }
  }
  std::vector<int32_t> zipf;
  for (int i = 1; i <= 64; ++i) zipf.push_back(std::max(256, 65536 / i) - 1);
  all.push_back({"decode b64 zipf", zipf, ones});
  all.push_back({"diffusion 64 x block 32, 4k", std::vector<int32_t>(64, 4096), std::vector<int32_t>(64, 32), 32, 8,
                 128, 32, 32, KeySpan::Kind::kBlock});
  all.push_back({"diffusion 64 x block 4, 4k", std::vector<int32_t>(64, 4096), std::vector<int32_t>(64, 4), 32, 8, 128,
                 32, 4, KeySpan::Kind::kBlock});
  for (const size_t requests : {64, 128, 256}) {
    all.push_back({"diffusion " + std::to_string(requests) + " x block 4, 320", std::vector<int32_t>(requests, 320),
                   std::vector<int32_t>(requests, 4), 32, 8, 128, 32, 4, KeySpan::Kind::kBlock});
  }
  std::vector<int32_t> ctx(32, 8191), rows(32, 1);
  all.push_back({"decode b32 8k alone", ctx, rows});
  ctx.push_back(0), rows.push_back(2048);
  all.push_back({"mixed: 32 decode at 8k + prefill 2k", ctx, rows});
  all.push_back({"mixed: decode at 128k + prefill 2k", {131071, 0}, {1, 2048}});
  for (const int32_t keys : {64, 320, 1024, 2048, 4096, 8192, 16384}) {
    all.push_back({"short: decode b1 " + std::to_string(keys), {keys - 1}, {1}});
    all.push_back({"short: decode b1 d256 8/2 " + std::to_string(keys), {keys - 1}, {1}, 8, 2, 256});
    all.push_back(
        {"short: block 8 of " + std::to_string(keys), {keys - 8}, {8}, 32, 8, 128, 64, 4, KeySpan::Kind::kBlock});
    all.push_back(
        {"short: decode b8 " + std::to_string(keys), std::vector<int32_t>(8, keys - 1), std::vector<int32_t>(8, 1)});
  }
  for (const int32_t keys : {1024, 2048, 4096, 8192, 16384, 32768}) {
    const auto few = [&](const std::string& name, int32_t block, int32_t heads, int32_t kv, int32_t dim) {
      all.push_back({"few: block " + std::to_string(block) + name + " of " + std::to_string(keys),
                     {keys - block},
                     {block},
                     heads,
                     kv,
                     dim,
                     64,
                     block,
                     KeySpan::Kind::kBlock});
    };
    few("", 4, 32, 8, 128), few("", 8, 32, 8, 128);
    few(" d256 16/2", 2, 16, 2, 256), few(" d256 16/2", 4, 16, 2, 256);
    few(" d64 32/8", 4, 32, 8, 64), few(" d64 32/8", 8, 32, 8, 64);
  }
  for (const int32_t keys : {64, 320, 1024, 2048}) {
    const auto several = [&](size_t requests, const std::string& name, int32_t block, int32_t heads, int32_t dim) {
      all.push_back({"several: " + std::to_string(requests) + " x block " + std::to_string(block) + name + " of " +
                         std::to_string(keys),
                     std::vector<int32_t>(requests, keys - block), std::vector<int32_t>(requests, block), heads,
                     heads / 4, dim, 64, block, KeySpan::Kind::kBlock});
    };
    for (const size_t requests : {1, 2, 4, 8}) several(requests, "", 4, 32, 128);
    for (const size_t requests : {1, 4}) several(requests, "", 8, 32, 128);
    for (const size_t requests : {1, 8}) several(requests, " d256 8/2", 4, 8, 256);
    for (const size_t requests : {1, 8}) several(requests, " d64 16/4", 4, 16, 64);
  }
  const auto many = [&](int32_t requests, int32_t block, int32_t keys) {
    const auto count = static_cast<size_t>(requests);
    all.push_back(
        {"many: " + std::to_string(requests) + " x block " + std::to_string(block) + " of " + std::to_string(keys),
         std::vector<int32_t>(count, keys - block), std::vector<int32_t>(count, block), 32, 8, 128, 64, block,
         KeySpan::Kind::kBlock});
  };
  for (const int32_t requests : {16, 32, 64, 128, 256}) many(requests, 4, 330);
  for (const int32_t block : {1, 8, 16}) many(128, block, 330);
  for (const int32_t keys : {384, 640}) many(128, 8, keys);
  for (const int32_t keys : {100, 640, 1024, 2048}) many(128, 4, keys);
  for (const int32_t keys : {332, 384, 512}) {  // a third of the requests commit a block
    many(128, 4, keys);
    AttentionCase& mixed = all.emplace_back(all.back());
    mixed.name = "many: 128 x blocks of 4 or 8 of " + std::to_string(keys);
    for (size_t r = 0; r < mixed.contexts.size(); r += 3) mixed.new_tokens[r] = 8;
  }
  const auto causal = KeySpan::Kind::kCausal;
  const auto batch = [&](int32_t requests, int32_t keys, int32_t heads, int32_t kv_heads, int32_t dim) {
    const auto count = static_cast<size_t>(requests);
    all.push_back({"batch: " + std::to_string(requests) + " x " + std::to_string(keys) + ", " + std::to_string(heads) +
                       "/" + std::to_string(kv_heads) + " d" + std::to_string(dim),
                   std::vector<int32_t>(count, keys - 1), std::vector<int32_t>(count, 1), heads, kv_heads, dim, 64, 1,
                   causal});
  };
  for (const int32_t keys : {330, 1024, 2048}) {
    for (const int32_t requests : {4, 8, 16, 32, 64}) batch(requests, keys, 32, 8, 128);
    for (const int32_t requests : {4, 16, 64, 256}) batch(requests, keys, 8, 2, 256);
  }
  for (const int32_t keys : {4096, 6500, 8192, 16384}) {
    for (const int32_t requests : {2, 4, 8}) batch(requests, keys, 32, 8, 128), batch(requests, keys, 8, 2, 256);
  }
  const auto codes = [&](const std::string& name, std::vector<int32_t> contexts, int32_t tokens, int32_t heads,
                         int32_t kv_heads, int32_t dim, int32_t page) {
    std::vector<int32_t> new_tokens(contexts.size(), tokens);
    all.push_back({"fp8 " + name, std::move(contexts), std::move(new_tokens), heads, kv_heads, dim, page, tokens,
                   tokens == 1 ? causal : KeySpan::Kind::kBlock, DType::kE4M3});
  };
  for (const int32_t page : {16, 64}) codes("decode b64 8k", std::vector<int32_t>(64, 8191), 1, 32, 8, 128, page);
  codes("decode b1 32k", {32767}, 1, 32, 8, 128, 64);
  codes("decode b1 128k d256", {131071}, 1, 16, 2, 256, 64);
  codes("decode b64 zipf", zipf, 1, 32, 8, 128, 64);
  codes("decode b64 8k d256", std::vector<int32_t>(64, 8191), 1, 16, 2, 256, 64);
  codes("decode b64 8k d64", std::vector<int32_t>(64, 8191), 1, 32, 8, 64, 64);
  for (const int32_t requests : {16, 128}) {
    codes("decode b" + std::to_string(requests) + " 330", std::vector<int32_t>(requests, 329), 1, 32, 8, 128, 64);
  }
  codes("decode b8 4k", std::vector<int32_t>(8, 4095), 1, 32, 8, 128, 64);
  for (const int32_t keys : {330, 1024, 2048}) {
    for (const size_t requests : {1, 4, 16}) {
      codes("few: " + std::to_string(requests) + " x " + std::to_string(keys), std::vector<int32_t>(requests, keys - 1),
            1, 32, 8, 128, 64);
    }
    codes("few: 1 x " + std::to_string(keys) + " in a graph for 2048", {keys - 1}, 1, 32, 8, 128, 64);
    all.back().most_keys = 2048;
  }
  codes("diffusion 64 x block 4", std::vector<int32_t>(64, 4096), 4, 32, 8, 128, 32);
  for (const int32_t n : {2048, 8192, 32768}) {
    all.push_back(
        {"fp8 prefill " + std::to_string(n) + " 32/8 d128", {0}, {n}, 32, 8, 128, 64, 1, causal, DType::kE4M3});
  }
  all.push_back({"fp8 prefill 8192 16/2 d256", {0}, {8192}, 16, 2, 256, 64, 1, causal, DType::kE4M3});
  all.push_back({"fp8 prefill 8192 32/8 d64", {0}, {8192}, 32, 8, 64, 64, 1, causal, DType::kE4M3});
  all.push_back({"fp8 mixed: 32 decode at 8k + prefill 2k", ctx, rows, 32, 8, 128, 64, 1, causal, DType::kE4M3});
  for (AttentionCase& other : other_sizes()) all.push_back(std::move(other));
  return all;
}

}  // namespace headrace::bench
