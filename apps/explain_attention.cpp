#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "explain.h"
#include "explain_text.h"
#include "headrace/core/error.h"
#include "headrace/ops/cuda/attention/attention_problem.h"
#include "headrace/text/json_string.h"

namespace headrace::app {
namespace {

using cuda::AttentionProblem;

int32_t number_up_to(const ExplainText& text, const std::string& key, int32_t most) {
  const int64_t value = text.number(key);
  HR_REQUIRE(value <= most, ErrorCode::kInvalidArgument, "--explain attention: ", key, " is ", value,
             ", expected at most ", most);
  return static_cast<int32_t>(value);
}

// Equal requests of `tokens` new tokens that see `keys` keys, theirs included. 16-bit activations in pages of 64 slots.
AttentionProblem attention_problem(const ExplainText& text) {
  text.allow({"heads", "kv_heads", "dim", "requests", "tokens", "keys", "kv", "mode"}, {"window", "soft-cap"});
  constexpr int32_t kMost = 1 << 20;
  const int32_t heads = number_up_to(text, "heads", kMost), kv_heads = number_up_to(text, "kv_heads", kMost),
                dim = number_up_to(text, "dim", kMost), requests = number_up_to(text, "requests", kMost),
                keys = number_up_to(text, "keys", 1 << 30), tokens = number_up_to(text, "tokens", 1 << 30);
  HR_REQUIRE(heads % kv_heads == 0, ErrorCode::kInvalidArgument, "--explain attention: ", heads,
             " heads are not a multiple of ", kv_heads, " kv_heads");
  HR_REQUIRE(tokens <= keys, ErrorCode::kInvalidArgument, "--explain attention: ", tokens,
             " tokens see themselves, expected at least as many keys, found ", keys);
  const int64_t rows = int64_t{requests} * heads / kv_heads;
  HR_REQUIRE(rows <= INT32_MAX / tokens, ErrorCode::kInvalidArgument, "--explain attention: ", rows, " times ", tokens,
             " query rows of a KV head, expected at most ", INT32_MAX);
  const auto mode =
      chosen<Determinism>(text, "mode", {{"default", Determinism::kFast}, {"batch-invariant", Determinism::kStrict}});
  const std::vector<KeySpan> spans(static_cast<size_t>(requests), {.q_len = tokens, .ctx_len = keys - tokens});
  return {.kv_dtype = chosen<DType>(text, "kv", {{"bf16", DType::kBF16}, {"fp8", DType::kE4M3}}),
          .kv_heads = kv_heads,
          .head_dim = dim,
          .v_head_dim = dim,
          .window = text.has("window"),
          .soft_cap = text.has("soft-cap"),
          .shape = cuda::shape_of(spans, heads / kv_heads, mode)};
}

}  // namespace

std::string explain_attention(const ExplainText& text, Output output) {
  const AttentionProblem p = attention_problem(text);
  const auto config = cuda::choose_attention(p, cuda::kH200);
  const std::vector<int32_t> buckets = cuda::kv_len_buckets(p, cuda::kH200);
  if (output == Output::kJson) {
    return fmt::format("{{\"kernel\": {}, \"plan\": {}, \"kv_len_buckets\": [{}]}}\n",
                       json_string(std::string(name_of(config.family))), json_string(to_string(config)),
                       fmt::join(buckets, ", "));
  }
  std::string line = to_string(config);
  if (!buckets.empty()) line += fmt::format("; graphs of their own up to {} keys", fmt::join(buckets, ", "));
  return line + "\n";
}

}  // namespace headrace::app
