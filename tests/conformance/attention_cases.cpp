#include "conformance/attention_cases.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "support/random.h"

namespace headrace::testing_support {
namespace {

using Kind = KeySpan::Kind;

// The axes. A choice is one index per axis.
enum Axis {
  kKind,
  kHole,
  kWindow,
  kCap,
  kGroup,
  kHeadDim,
  kVDim,
  kPage,
  kPrefix,
  kNew,
  kDType,
  kPool,
  kLayout,
  kRows,
  kValues,
  kNumAxes
};
constexpr std::array<int, kNumAxes> kSizes = {5, 2, 4, 2, 6, 7, 3, 6, 3, 3, 3, 4, 2, 2, 2};
using Choice = std::array<int, kNumAxes>;

constexpr std::array kKinds = {Kind::kCausal, Kind::kBlock, Kind::kFull, Kind::kPrefixFull, Kind::kNone};
constexpr std::array kGroups = {1, 2, 4, 5, 7, 8};
constexpr std::array<int32_t, 7> kHeadDims = {64, 80, 96, 128, 192, 256, 512};  // the last is the largest of all
constexpr int32_t kWider = 72;  // values have so many elements more than keys
constexpr std::array kPages = {1, 16, 32, 64, 128, 256};
constexpr std::array kPrefixes = {0, 1, 45};
constexpr std::array kNews = {1, 2, 11};
constexpr std::array kDTypes = {DType::kF32, DType::kBF16, DType::kF16};

RequestCase request_of(const Choice& c, int32_t prefix, int32_t new_tokens) {
  RequestCase r{.prefix = prefix, .new_tokens = new_tokens, .kind = kKinds[static_cast<size_t>(c[kKind])]};
  if (r.kind == Kind::kPrefixFull) {
    r.prefix = 0;
    r.prompt_len = std::max(1, new_tokens - 5);
    r.padded_prompt_len = std::max(r.prompt_len, new_tokens - 3);
  }
  if (r.kind == Kind::kNone) r.prefix = std::max(r.prefix, new_tokens);
  if (c[kHole] == 1 && r.prefix > 8) {
    r.hole_begin = 5;
    r.hole_end = r.log_shift = 8;
    r.log_shift -= r.hole_begin;
  }
  if (c[kWindow] == 3) r.window_from = KeySpan::WindowFrom::kSegment;
  return r;
}

AttentionCase case_of(const Choice& c, std::string name) {
  AttentionCase a{.name = std::move(name)};
  const int32_t prefix = kPrefixes[static_cast<size_t>(c[kPrefix])], fresh = kNews[static_cast<size_t>(c[kNew])];
  // A hole needs a context around it, whatever the first request has.
  a.requests = {request_of(c, prefix, fresh), request_of(c, 3, 1),
                c[kHole] == 1 ? request_of(c, kPrefixes.back(), fresh) : request_of(c, prefix, 2)};
  a.num_kv_heads = 2;
  a.num_heads = 2 * kGroups[static_cast<size_t>(c[kGroup])];
  a.head_dim = kHeadDims[static_cast<size_t>(c[kHeadDim])];
  if (c[kVDim] == 1) a.v_head_dim = 48;
  if (c[kVDim] == 2) a.v_head_dim = std::min(kHeadDims.back(), a.head_dim + kWider);
  a.page_size = kPages[static_cast<size_t>(c[kPage])];
  constexpr std::array<int32_t, 4> kWindows = {0, 3, 20, 7};
  if (c[kWindow] > 0) a.window = kWindows[static_cast<size_t>(c[kWindow])];
  a.logit_cap = c[kCap] == 1 ? 2.5f : 0.0f;
  a.dtype = kDTypes[static_cast<size_t>(c[kDType])];
  a.pool_dtype = c[kPool] == 0 ? a.dtype : c[kPool] == 1 ? DType::kBF16 : DType::kE4M3;
  if (c[kPool] == 3) a.k_scale = 0.021f, a.v_scale = 1.7f;
  a.pool_layout = c[kLayout] == 0 ? KVLayout::kHeadMajor : KVLayout::kTokenMajor;
  a.rows = c[kRows] == 0 ? AttentionCase::Rows::kDense : AttentionCase::Rows::kFused;
  a.values = c[kValues] == 0 ? AttentionCase::Values::kFinite : AttentionCase::Values::kInfinite;
  return a;
}

Choice random_choice(Random& random) {
  Choice c{};
  for (int axis = 0; axis < kNumAxes; ++axis) {
    c[static_cast<size_t>(axis)] = static_cast<int>(random.below(kSizes[static_cast<size_t>(axis)]));
  }
  return c;
}

// A prompt in one pass has nothing cached: a prefix or a hole chosen for it would be counted and not tested, and
// so would values wider than the largest heads.
bool is_possible(const Choice& c) {
  if (kHeadDims[static_cast<size_t>(c[kHeadDim])] == kHeadDims.back() && c[kVDim] == 2) return false;
  return kKinds[static_cast<size_t>(c[kKind])] != Kind::kPrefixFull || (c[kPrefix] == 0 && c[kHole] == 0);
}

using Pair = std::tuple<int, int, int, int>;  // axis, value, axis, value

std::vector<Pair> pairs_of(const Choice& c) {
  std::vector<Pair> pairs;
  for (int i = 0; i < kNumAxes; ++i) {
    for (int j = i + 1; j < kNumAxes; ++j) {
      pairs.emplace_back(i, c[static_cast<size_t>(i)], j, c[static_cast<size_t>(j)]);
    }
  }
  return pairs;
}

std::set<Pair> all_pairs() {
  std::set<Pair> pairs;
  for (int i = 0; i < kNumAxes; ++i) {
    for (int j = i + 1; j < kNumAxes; ++j) {
      for (int x = 0; x < kSizes[static_cast<size_t>(i)]; ++x) {
        for (int y = 0; y < kSizes[static_cast<size_t>(j)]; ++y) {
          Choice c{};
          c[static_cast<size_t>(i)] = x;
          c[static_cast<size_t>(j)] = y;
          if (is_possible(c)) pairs.emplace(i, x, j, y);
        }
      }
    }
  }
  return pairs;
}

}  // namespace

std::vector<AttentionCase> pairwise_attention_cases() {
  constexpr int kCandidates = 30;  // greedy: the random candidate that covers most of what is left
  Random random(2024);
  std::set<Pair> left = all_pairs();
  std::vector<AttentionCase> cases;
  while (!left.empty()) {
    Choice best{};
    int64_t best_count = -1;
    for (int i = 0; i < kCandidates; ++i) {
      Choice choice = random_choice(random);
      const auto& [a, x, b, y] = *left.begin();  // so that every round covers at least this one
      choice[static_cast<size_t>(a)] = x;
      choice[static_cast<size_t>(b)] = y;
      if (!is_possible(choice)) continue;
      const auto pairs = pairs_of(choice);
      const int64_t count = std::ranges::count_if(pairs, [&](const Pair& p) { return left.contains(p); });
      if (count > best_count) {
        best = choice;
        best_count = count;
      }
    }
    for (const Pair& pair : pairs_of(best)) left.erase(pair);
    cases.push_back(case_of(best, "pair_" + std::to_string(cases.size())));
  }
  return cases;
}

std::vector<AttentionCase> sampled_attention_cases(uint64_t seed, int count) {
  Random random(seed);
  std::vector<AttentionCase> cases;
  for (int i = 0; i < count; ++i) cases.push_back(case_of(random_choice(random), "sample_" + std::to_string(i)));
  return cases;
}

namespace {

// As many requests as a GPU wants before each kv head of each of them is one warp's work: 17 with rows and 16 heads are
// 272, where 132 multiprocessors want 264. Contexts end anywhere in a tile, some begin with hidden keys, and a request
// has no rows.
std::vector<RequestCase> many_requests(Kind kind, int32_t few, int32_t most, bool holes = false) {
  std::vector<RequestCase> requests;
  for (int32_t r = 0; r < 18; ++r) {
    const int32_t rows = r == 7 ? 0 : r % 7 == 2 ? most : few;
    RequestCase request{.prefix = r * 37 % 73 + (r % 11 == 3 ? 150 : 0), .new_tokens = rows, .kind = kind};
    if (kind == Kind::kNone) request.prefix += rows;
    if (holes && request.prefix > 45) {
      request.hole_begin = 9, request.hole_end = r % 2 == 0 ? 44 : 14;
      request.log_shift = request.hole_end - request.hole_begin;
    }
    requests.push_back(request);
  }
  return requests;
}

AttentionCase many(std::string name, std::vector<RequestCase> requests, int32_t page_size, DType dtype) {
  return {.name = "many_" + std::move(name),
          .requests = std::move(requests),
          .num_heads = 16,
          .num_kv_heads = 16,
          .head_dim = 128,
          .page_size = page_size,
          .dtype = dtype,
          .pool_dtype = dtype};
}

void add_many(std::vector<AttentionCase>& cases) {
  constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16;
  cases.push_back(many("blocks", many_requests(Kind::kBlock, 4, 24), 64, kBF16));
  cases.push_back(many("decode", many_requests(Kind::kCausal, 1, 1), 16, kF16));
  cases.back().v_head_dim = 80;
  cases.push_back(many("windows_caps_and_holes", many_requests(Kind::kFull, 3, 6, true), 16, kBF16));
  cases.back().window = 40, cases.back().logit_cap = 2.5f;
  cases.push_back(many("keys_in_the_pool", many_requests(Kind::kBlock, 4, 8), 128, kBF16));
  cases.back().new_keys = AttentionCase::NewKeys::kInPool;
  cases.push_back(many("infinite_values", many_requests(Kind::kCausal, 4, 9), 64, kBF16));
  cases.back().window = 30, cases.back().values = AttentionCase::Values::kInfinite;
  cases.push_back(many("small_pages", many_requests(Kind::kBlock, 4, 17), 16, kBF16));
  cases.back().head_dim = 72;
  cases.push_back(many("cached_keys_that_nobody_sees", many_requests(Kind::kCausal, 4, 24), 32, kBF16));
  cases.back().type = AttentionType::kEncoderOnly;
  cases.push_back(many("rows_for_two_passes", many_requests(Kind::kCausal, 2, 40), 32, kBF16));
  // The first row sees keys from 31 + 7 r on: windows that begin within a piece of a tile (32 keys, or 16 with more
  // than 16 rows) whose next piece is cached whole, so that lanes bring the first one and the copy engine the next.
  cases.push_back(many("windows_that_begin_within_a_piece", many_requests(Kind::kCausal, 2, 17), 64, kBF16));
  cases.back().window = 100;
  for (size_t r = 0; r < cases.back().requests.size(); ++r)
    cases.back().requests[r].prefix = 130 + 7 * static_cast<int32_t>(r);
  // One run of keys for each request: contexts end anywhere in a piece of 16 keys or with it, or see no new key.
  const auto runs = [&](std::string name, int32_t few, int32_t most, int32_t page_size) -> AttentionCase& {
    AttentionCase& c =
        cases.emplace_back(many(std::move(name), many_requests(Kind::kBlock, few, most), page_size, kBF16));
    c.num_heads = 64;
    for (size_t r = 0; r < c.requests.size(); ++r) {
      const auto i = static_cast<int32_t>(r);
      c.requests[r].prefix = 24 + (i % 3 == 0 ? i * 48 + 8 : i * 37) % 140;
      if (i % 5 == 4) c.requests[r].kind = i % 2 == 0 ? Kind::kNone : Kind::kCausal;
    }
    return c;
  };
  const auto in_the_pool_with_infinite_values = [](AttentionCase& c) {
    c.new_keys = AttentionCase::NewKeys::kInPool, c.values = AttentionCase::Values::kInfinite;
  };
  // Too many for warps to share keys: six for each multiprocessor, or more rows.
  const auto lone = [](AttentionCase& c, int32_t group) -> AttentionCase& {
    c.num_kv_heads = 48, c.num_heads = 48 * group;
    return c;
  };
  lone(runs("runs_of_16_rows", 1, 8, 64), 2), runs("runs_of_40_rows", 2, 10, 32);
  runs("runs_in_the_pool", 2, 10, 16).new_keys = AttentionCase::NewKeys::kInPool;
  in_the_pool_with_infinite_values(lone(runs("runs_in_the_pool_with_infinite_values", 1, 4, 32), 1));
  // As few of them that the warps of a block share the keys of one; the third is of another kind.
  const auto shared = [&](const std::string& name, int32_t few, int32_t most, int32_t page_size) -> AttentionCase& {
    AttentionCase& c = runs("shared_" + name, few, most, page_size);
    c.requests.resize(12);
    c.requests[2].kind = Kind::kFull, c.requests[2].hole_begin = 3, c.requests[2].hole_end = 22;
    return c;
  };
  shared("runs_of_16_rows", 2, 4, 64), shared("runs_of_32_rows", 2, 8, 32);
  in_the_pool_with_infinite_values(shared("runs_in_the_pool_with_infinite_values", 1, 4, 32));
  shared("runs_of_heads_of_256", 2, 4, 64).head_dim = 256;
  AttentionCase& in_the_pool = shared("runs_of_heads_of_256_in_the_pool_with_infinite_values", 1, 2, 16);
  in_the_pool.head_dim = 256;
  in_the_pool_with_infinite_values(in_the_pool);
  AttentionCase& long_ones = shared("runs_of_many_tiles", 1, 2, 64);
  long_ones.num_heads = 32, long_ones.dtype = long_ones.pool_dtype = kF16;
  for (RequestCase& request : long_ones.requests) request.prefix = request.prefix * 7;
  // More pages than a warp holds the numbers of at once.
  cases.push_back(many("pages", many_requests(Kind::kCausal, 1, 2), 16, kBF16));
  for (RequestCase& request : cases.back().requests) request.prefix = request.prefix * 8 % 630;
}

// Parts of blocks that replace what is cached of them, with blocks of other requests between: new keys lie within the
// cached ones, the last part's at their end.
AttentionCase parts_of_blocks(std::string name) {
  AttentionCase all{.name = "parts_of_blocks_" + std::move(name), .requests = {}};
  for (int32_t r = 0; r < 4; ++r) {
    const int32_t context = 32 * (1 + r * 5 % 8), part = context - 32 + 8 * (r % 4);
    RequestCase request{.prefix = context, .new_tokens = 8, .kind = Kind::kFull};
    request.hole_begin = part, request.hole_end = part + 8, request.place = RequestCase::Place::kInHole;
    if (r == 1) request = {.prefix = 64, .new_tokens = 32, .kind = Kind::kBlock, .block_size = 32};
    all.requests.push_back(request);
  }
  return all;
}

// Few rows over pools of FP8: on Hopper a kernel of its own, whose blocks take several pieces each.
void add_codes(std::vector<AttentionCase>& cases) {
  const auto add = [&](const AttentionCase& c, int32_t group) -> AttentionCase& {
    AttentionCase& codes = cases.emplace_back(c);
    codes.num_heads = codes.num_kv_heads * group;
    codes.pool_dtype = DType::kE4M3, codes.k_scale = 0.4f, codes.v_scale = 1.7f;
    return codes;
  };
  constexpr DType kBF16 = DType::kBF16;
  add(many("codes_decode", many_requests(Kind::kCausal, 1, 1), 16, DType::kF16), 1).v_head_dim = 80;
  add(many("codes_blocks", many_requests(Kind::kBlock, 4, 8), 32, kBF16), 2);
  add(many("codes_windows_and_holes", many_requests(Kind::kFull, 3, 6, true), 16, kBF16), 1).window = 40;
  add(many("codes_keys_in_the_pool", many_requests(Kind::kBlock, 4, 8), 128, kBF16), 1).new_keys =
      AttentionCase::NewKeys::kInPool;
  cases.back().head_dim = 72;
  add(many("codes_that_nobody_sees", many_requests(Kind::kCausal, 4, 8), 32, kBF16), 1).type =
      AttentionType::kEncoderOnly;
  add(many("codes_of_heads_of_256", many_requests(Kind::kCausal, 1, 2), 64, kBF16), 4).head_dim = 256;
  add(many("codes_of_16_rows_of_heads_of_256", many_requests(Kind::kBlock, 1, 4), 16, kBF16), 4).head_dim = 192;
  AttentionCase several = many("codes_of_several_tiles", {}, 64, kBF16);
  several.num_kv_heads = 3;
  several.requests = {{.prefix = 1500, .new_tokens = 2}, {.prefix = 290}, {.prefix = 2100, .kind = Kind::kNone}};
  add(several, 5);
  several.name = "codes_of_one_request", several.requests = {{.prefix = 1300, .new_tokens = 2, .kind = Kind::kBlock}};
  add(several, 4);
  add(parts_of_blocks("of_codes"), 1).dtype = kBF16;
}

// Two tiles of 16 rows for each request, which cluster decode supports; contexts end anywhere in a tile of
// keys, some begin with hidden keys.
AttentionCase blocks_of_32_rows(std::string name, bool holes) {
  AttentionCase all{.name = "blocks_of_32_rows_" + std::move(name), .requests = {}, .num_kv_heads = 1};
  for (int32_t r = 0; r < 24; ++r) {
    RequestCase request{.prefix = 260 + r * 37 % 150, .new_tokens = r % 5 == 1 ? 5 : 8, .kind = Kind::kBlock};
    if (holes && r % 3 == 0)
      request.hole_begin = 9, request.hole_end = 44 + r, request.log_shift = request.hole_end - request.hole_begin;
    all.requests.push_back(request);
  }
  all.dtype = all.pool_dtype = DType::kBF16;
  return all;
}

void add_few_rows(std::vector<AttentionCase>& cases) {
  cases.push_back(parts_of_blocks("alone"));
  cases.push_back(parts_of_blocks("of_16_bits"));
  cases.back().num_heads = 14, cases.back().head_dim = 128, cases.back().page_size = 64;
  cases.back().dtype = cases.back().pool_dtype = DType::kBF16;
  cases.push_back(parts_of_blocks("in_the_pool"));
  cases.back().dtype = cases.back().pool_dtype = DType::kBF16;
  cases.back().new_keys = AttentionCase::NewKeys::kInPool;
  cases.push_back(blocks_of_32_rows("alone", false));
  cases.push_back(blocks_of_32_rows("windows_caps_and_holes", true));
  cases.back().window = 230, cases.back().logit_cap = 2.5f, cases.back().head_dim = 72;
  cases.back().dtype = cases.back().pool_dtype = DType::kF16;
  cases.push_back(blocks_of_32_rows("infinite_values", false));
  cases.back().window = 100, cases.back().values = AttentionCase::Values::kInfinite;
  cases.push_back(
      {.name = "blocks_of_20_and_12_rows",
       .requests = {{.prefix = 1500, .new_tokens = 5, .kind = Kind::kBlock}, {.prefix = 300, .new_tokens = 3}},
       .num_kv_heads = 1,
       .page_size = 64,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kBF16});
  // More rows than cluster decode supports.
  cases.push_back(
      {.name = "blocks_of_64_and_40_rows",
       .requests = {{.prefix = 1300, .new_tokens = 16, .kind = Kind::kBlock}, {.prefix = 621, .new_tokens = 10}},
       .num_kv_heads = 1,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kBF16});
  cases.push_back(cases.back());
  cases.back().name += "_windows_caps_and_holes";
  cases.back().requests[1].hole_begin = 9, cases.back().requests[1].hole_end = 420;
  cases.back().requests[1].log_shift = 411;
  cases.back().window = 700, cases.back().logit_cap = 2.5f, cases.back().head_dim = 72;
  cases.back().dtype = cases.back().pool_dtype = DType::kF16;
}

}  // namespace

std::vector<AttentionCase> named_attention_cases() {
  using NewKeys = AttentionCase::NewKeys;
  const auto segment = KeySpan::WindowFrom::kSegment;
  const auto cross = RadixAttentionConfig::KeySource::kCrossAttention;
  std::vector<AttentionCase> cases = {
      {.name = "causal", .requests = {{.new_tokens = 9}}},
      {.name = "decode", .requests = {{.prefix = 70}, {.prefix = 1}, {.prefix = 33}}},
      {.name = "one_token_nothing_cached", .requests = {{}}},
      {.name = "B09_group_5", .requests = {{.prefix = 20, .new_tokens = 3}}, .num_heads = 5, .num_kv_heads = 1},
      {.name = "B09_group_7", .requests = {{.prefix = 20, .new_tokens = 3}}, .num_heads = 28, .num_kv_heads = 4},
      {.name = "B10_first_tile_masked", .requests = {{.prefix = 300, .new_tokens = 2}}, .window = 4},
      {.name = "B10_window_counts_logical_positions",
       .requests =
           {{.prefix = 24, .new_tokens = 8, .kind = Kind::kFull, .hole_begin = 5, .hole_end = 8, .log_shift = 3}},
       .window = 26},
      {.name = "B11_prefix_full",
       .requests = {{.new_tokens = 12, .kind = Kind::kPrefixFull, .prompt_len = 6, .padded_prompt_len = 8}}},
      {.name = "block_decode_two_blocks", .requests = {{.prefix = 4, .new_tokens = 8, .kind = Kind::kBlock}}},
      {.name = "cache_only_refine",
       .requests = {{.prefix = 64, .new_tokens = 8, .kind = Kind::kNone}},
       .page_size = 32},
      {.name = "canvas_segment_window",
       .requests = {{.prefix = 40, .new_tokens = 16, .kind = Kind::kFull, .window_from = segment}},
       .window = 8},
      {.name = "dual_cache_hole",
       .requests = {{.prefix = 48, .new_tokens = 8, .kind = Kind::kFull, .hole_begin = 16, .hole_end = 24}}},
      {.name = "cross_attention",
       .requests = {{.new_tokens = 3, .encoder_len = 21}, {.new_tokens = 1, .encoder_len = 0}},
       .source = cross},
      {.name = "bidirectional",
       .requests = {{.prefix = 5, .new_tokens = 7}},
       .type = AttentionType::kDecoderBidirectional},
      {.name = "encoder_only", .requests = {{.prefix = 5, .new_tokens = 7}}, .type = AttentionType::kEncoderOnly},
      {.name = "keys_in_the_pool", .requests = {{.prefix = 5, .new_tokens = 7}}, .new_keys = NewKeys::kInPool},
      {.name = "not_saved", .requests = {{.prefix = 5, .new_tokens = 1}}, .save = SaveKV::kNo},
      {.name = "mixed_kinds",
       .requests = {{.prefix = 33, .new_tokens = 1},
                    {.new_tokens = 17},
                    {.prefix = 8, .new_tokens = 4, .kind = Kind::kBlock},
                    {.prefix = 12, .new_tokens = 4, .kind = Kind::kNone},
                    {.prefix = 9, .new_tokens = 5, .kind = Kind::kFull}}},
      {.name = "empty_request_between", .requests = {{.prefix = 7}, {.prefix = 9, .new_tokens = 0}, {.prefix = 3}}},
      {.name = "long_context", .requests = {{.prefix = 1500}, {.prefix = 700, .new_tokens = 3}}, .page_size = 64},
      {.name = "largest_heads",
       .requests = {{.prefix = 20, .new_tokens = 3}, {.prefix = 33}},
       .head_dim = kHeadDims.back(),
       .v_head_dim = 264},
      {.name = "largest_heads_of_values_and_16_bits",
       .requests = {{.prefix = 20, .new_tokens = 3}, {.prefix = 33}},
       .head_dim = 264,
       .v_head_dim = kHeadDims.back(),
       .dtype = DType::kBF16,
       .pool_dtype = DType::kBF16},
      // A GPU's clusters of blocks take these: several rounds of tiles, several groups of strict mode.
      {.name = "long_context_of_16_bits",
       .requests = {{.prefix = 1500}, {.prefix = 700, .new_tokens = 3}},
       .page_size = 64,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kBF16},
      {.name = "one_long_request",
       .requests = {{.prefix = 4500, .new_tokens = 2}},
       .page_size = 64,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kBF16},
      {.name = "infinite_value_that_later_rows_see",
       .requests = {{.new_tokens = 5}, {.prefix = 30, .new_tokens = 3}, {.prefix = 9}},
       .values = AttentionCase::Values::kInfinite},
      {.name = "infinite_value_that_earlier_rows_see",
       .requests = {{.prefix = 70, .new_tokens = 12}},
       .window = 9,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kBF16,
       .values = AttentionCase::Values::kInfinite},
      {.name = "fused_rows_and_a_token_major_pool",
       .requests = {{.prefix = 40, .new_tokens = 20}, {.prefix = 7}},
       .v_head_dim = 48,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kBF16,
       .pool_layout = KVLayout::kTokenMajor,
       .rows = AttentionCase::Rows::kFused},
      {.name = "pool_narrower_than_inputs",
       .requests = {{.prefix = 10, .new_tokens = 6}},
       .dtype = DType::kF32,
       .pool_dtype = DType::kF16},
      {.name = "pages_of_1",
       .requests = {{.prefix = 300, .new_tokens = 70}, {.prefix = 5}, {.new_tokens = 9}},
       .num_heads = 8,
       .num_kv_heads = 2,
       .head_dim = 128,
       .page_size = 1,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kBF16,
       .new_keys = NewKeys::kInPool},
      {.name = "many_new_keys_beside_the_pool",
       .requests = {{.prefix = 90, .new_tokens = 300}, {.new_tokens = 65}, {.prefix = 200}},
       .num_heads = 4,
       .num_kv_heads = 1,
       .head_dim = 256,
       .v_head_dim = 192,
       .page_size = 64,
       .window = 180,
       .dtype = DType::kF16,
       .pool_dtype = DType::kF16},
      {.name = "fp8_decode_pages_of_1",
       .requests = {{.prefix = 70}, {.prefix = 1}, {.prefix = 33}},
       .page_size = 1,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kE4M3},
      {.name = "fp8_prompt_with_scales",
       .requests = {{.prefix = 300, .new_tokens = 70}, {.new_tokens = 9}},
       .num_heads = 28,
       .num_kv_heads = 4,
       .head_dim = 128,
       .page_size = 256,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kE4M3,
       .k_scale = 0.03f,
       .v_scale = 0.011f},
      {.name = "fp8_values_wider_than_keys",
       .requests = {{.prefix = 100, .new_tokens = 3}, {.prefix = 40}},
       .head_dim = 64,
       .v_head_dim = 128,
       .page_size = 32,
       .logit_cap = 2.5f,
       .dtype = DType::kF16,
       .pool_dtype = DType::kE4M3,
       .k_scale = 2.5f,
       .v_scale = 0.25f},
      {.name = "fp8_not_saved",
       .requests = {{.prefix = 5, .new_tokens = 11}},
       .head_dim = 256,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kE4M3,
       .k_scale = 0.3f,
       .v_scale = 0.7f,
       .save = SaveKV::kNo},
      {.name = "fp8_keys_in_the_pool",
       .requests = {{.prefix = 5, .new_tokens = 70}},
       .dtype = DType::kBF16,
       .pool_dtype = DType::kE4M3,
       .k_scale = 0.3f,
       .v_scale = 0.7f,
       .new_keys = NewKeys::kInPool},
      {.name = "fp8_hole_and_window",
       .requests =
           {{.prefix = 200, .new_tokens = 8, .kind = Kind::kFull, .hole_begin = 16, .hole_end = 90, .log_shift = 74},
            {.prefix = 130, .new_tokens = 16, .kind = Kind::kBlock}},
       .num_heads = 16,
       .head_dim = 128,
       .window = 60,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kE4M3,
       .v_scale = 1.3f},
      {.name = "fp8_cross_attention",
       .requests = {{.new_tokens = 3, .encoder_len = 21}, {.new_tokens = 1, .encoder_len = 0}},
       .dtype = DType::kBF16,
       .pool_dtype = DType::kE4M3,
       .k_scale = 0.5f,
       .source = cross},
      {.name = "fp8_fused_rows_and_a_token_major_pool",
       .requests = {{.prefix = 40, .new_tokens = 20}, {.prefix = 7}},
       .v_head_dim = 48,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kE4M3,
       .pool_layout = KVLayout::kTokenMajor,
       .rows = AttentionCase::Rows::kFused},
      {.name = "fp8_long_context",
       .requests = {{.prefix = 1500}, {.prefix = 700, .new_tokens = 3}},
       .page_size = 64,
       .dtype = DType::kBF16,
       .pool_dtype = DType::kE4M3,
       .k_scale = 0.02f,
       .v_scale = 3.0f},
  };
  add_many(cases);
  add_few_rows(cases);
  add_codes(cases);
  return cases;
}

std::vector<AttentionCase> int8_attention_cases() {
  std::vector<AttentionCase> cases;
  for (const auto& all : {named_attention_cases(), pairwise_attention_cases()}) {
    for (AttentionCase c : all) {
      if (c.pool_dtype != DType::kE4M3) continue;
      c.name = "int8_" + c.name;
      c.pool_dtype = DType::kI8, c.k_scale = c.v_scale = 1;
      c.values = AttentionCase::Values::kFinite;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

}  // namespace headrace::testing_support
