#include "conformance/random_attention_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "headrace/core/error.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

using Kind = KeySpan::Kind;

// Draws one case. What follows needs what was drawn before: heads, then the pool, then requests within the budget.
class CaseDrawer {
 public:
  CaseDrawer(uint64_t seed, double most_products) : random_(seed) {
    products_ = most_products;
    elements_ = 2e6 + most_products / 20;
    c_.name = std::to_string(seed);
  }

  AttentionCase draw() {
    profile_ = pick({Profile::kAny, Profile::kFewRows, Profile::kFewRows, Profile::kOneLong, Profile::kManyShort,
                     Profile::kCrowd, Profile::kDecode, Profile::kPrompts, Profile::kMixed});
    if (!is_many()) products_ *= std::pow(10, -1.5 * random_.uniform());
    draw_heads();
    draw_memory();
    draw_layer();
    draw_requests();
    return std::move(c_);
  }

 private:
  // What the requests are like: each is for other kernels.
  enum class Profile : uint8_t { kAny, kFewRows, kOneLong, kManyShort, kCrowd, kDecode, kPrompts, kMixed };
  bool is_many() const { return profile_ == Profile::kManyShort || profile_ == Profile::kCrowd; }

  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[random_.below(static_cast<int64_t>(values.size()))];
  }
  bool chance(double p) { return random_.uniform() < p; }
  int32_t between(int32_t first, int32_t last) {
    return first + static_cast<int32_t>(random_.below(int64_t{last} - first + 1));
  }
  int32_t logarithmic(int32_t most) {  // 0 .. most, small ones more often
    return static_cast<int32_t>(std::exp(random_.uniform() * std::log(most + 1.0))) - 1;
  }
  int32_t group() const { return c_.num_heads / c_.num_kv_heads; }
  int32_t dims() const { return c_.head_dim + c_.v_head_dim.value_or(c_.head_dim); }

  void draw_heads();
  void draw_memory();
  void draw_layer();
  void draw_requests();
  int32_t num_requests();
  int32_t rows();
  int32_t context(int32_t rows);
  RequestCase request();
  void draw_kind(RequestCase& r);
  void draw_hole(RequestCase& r);
  double products_of(const RequestCase& r) const;
  double elements_of(const RequestCase& r) const;

  Random random_;
  double products_, elements_;  // left: of products, and of numbers in the pool
  Profile profile_ = Profile::kAny;
  int32_t most_context_ = 40000;
  int32_t most_rows_ = 1;  // of kManyShort and kCrowd
  AttentionCase c_;
};

void CaseDrawer::draw_heads() {
  const bool many = is_many(), one = profile_ == Profile::kOneLong;
  c_.num_kv_heads = many ? pick({2, 4, 8, 16, 16}) : pick({1, 1, 1, 2, 2, 3, 4, 8, 16});
  const int32_t group = many ? pick({1, 1, 2, 4, 5, 8}) : pick({1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 12, 16});
  if (!many && group * c_.num_kv_heads > 64) c_.num_kv_heads = 1;
  c_.num_heads = c_.num_kv_heads * group;
  c_.head_dim =
      many ? pick({72, 80, 96, 128, 128, 128}) : pick({64, 64, 72, 80, 96, 128, 128, 128, 128, 192, 256, 256});
  if (one) c_.head_dim = pick({64, 128, 128, 256});
  const bool large = !many && chance(0.08);  // beyond what tensor cores take
  if (large) c_.head_dim = pick({264, 320, 384, 512, 512});
  if (chance(one ? 0.05 : 0.2)) c_.v_head_dim = many ? pick({48, 64, 80, 128}) : pick({48, 64, 80, 96, 128, 200, 256});
  if (large && chance(0.3)) c_.v_head_dim = pick({128, 256, 320, 512});
}

void CaseDrawer::draw_memory() {
  // Most cases are what tensor cores and 16-byte copies take.
  const bool usual = is_many() || chance(0.8);
  c_.dtype = usual ? pick({DType::kBF16, DType::kF16}) : pick({DType::kBF16, DType::kF16, DType::kF32, DType::kF32});
  const bool codes = profile_ != Profile::kOneLong && !is_many() && chance(0.25);
  c_.pool_dtype = codes ? DType::kE4M3 : usual || chance(0.6) ? c_.dtype : pick({DType::kBF16, DType::kF16});
  if (c_.pool_dtype == DType::kE4M3 && chance(0.6)) {
    c_.k_scale = static_cast<float>(std::pow(10, random_.uniform() * 2.5 - 2));
    c_.v_scale = static_cast<float>(std::pow(10, random_.uniform() * 2.5 - 2));
  }
  c_.page_size = usual ? pick({16, 16, 32, 64, 64, 128, 256}) : pick({1, 1, 16, 32, 64});
  if (chance(0.25)) c_.pool_layout = KVLayout::kTokenMajor;
  using Rows = AttentionCase::Rows;
  c_.rows = usual ? pick({Rows::kDense, Rows::kFusedAligned}) : pick({Rows::kDense, Rows::kFusedAligned, Rows::kFused});
  using Unread = AttentionCase::Unread;
  c_.unread = pick({Unread::kNaN, Unread::kNaN, Unread::kInfinite, Unread::kLarge});
  if (chance(0.35)) c_.new_keys = AttentionCase::NewKeys::kInPool;
  if (chance(0.1)) c_.save = SaveKV::kNo;
  if (chance(0.2)) c_.padding_rows = between(1, 40);
}

void CaseDrawer::draw_layer() {
  if (is_many() && chance(0.4)) {  // contexts are short
    c_.window = pick({1, 3, 16, 40, 64, 65, 128, 129, 200, between(64, 300), 1 + logarithmic(300)});
  } else if (chance(profile_ == Profile::kOneLong ? 0.1 : 0.35)) {
    c_.window = pick({1,
                      3,
                      16,
                      40,
                      63,
                      64,
                      65,
                      100,
                      127,
                      128,
                      129,
                      384,
                      511,
                      1023,
                      1024,
                      1025,
                      2047,
                      2048,
                      4095,
                      4096,
                      4097,
                      8192,
                      1 + logarithmic(12000),
                      1 + logarithmic(12000)});
  }
  if (chance(0.2)) c_.logit_cap = pick({0.5f, 2.5f, 30.0f});
  if (chance(0.07)) {
    c_.source = RadixAttentionConfig::KeySource::kCrossAttention;
    c_.window.reset();
  } else if (chance(0.08)) {
    c_.type = pick({AttentionType::kDecoderBidirectional, AttentionType::kEncoderOnly});
    if (c_.type == AttentionType::kEncoderOnly) c_.new_keys = AttentionCase::NewKeys::kGiven;  // it has no pool
  } else if (chance(0.1)) {
    c_.values = AttentionCase::Values::kInfinite;
  }
}

int32_t CaseDrawer::num_requests() {
  switch (profile_) {
    case Profile::kAny: return between(1, 8);
    case Profile::kFewRows: return pick({1, 1, 1, 2, 3, 4, between(5, 12)});
    case Profile::kOneLong: return 1;
    case Profile::kManyShort: return std::max(1, 264 / c_.num_kv_heads + pick({-1, 1, 8, 40}));
    case Profile::kCrowd: return std::max(1, 528 / c_.num_kv_heads + pick({-1, 1, 8, 40}));
    case Profile::kDecode: return between(8, chance(0.2) ? 200 : 64);
    case Profile::kPrompts: return between(1, 3);
    case Profile::kMixed: return between(3, 24);
  }
  return 1;
}

// New tokens of a request.
int32_t CaseDrawer::rows() {
  if (chance(0.03)) return 0;
  const int32_t of_64 = std::max(1, 64 / group());  // as many as give 64 packed rows
  switch (profile_) {
    case Profile::kAny: return between(1, 20);
    case Profile::kFewRows:
      return pick({1, 1, 2, std::max(1, of_64 / 8), std::max(1, of_64 / 4), of_64 / 2 + 1, of_64});
    case Profile::kOneLong: return between(1, std::max(1, 8 / group()));
    case Profile::kManyShort:
    case Profile::kCrowd: return between(1, most_rows_);
    case Profile::kDecode: return chance(0.9) ? 1 : pick({2, 4, 8, 16});
    case Profile::kPrompts: return pick({of_64 + 1, 2 * of_64, 3 * of_64 + 1, between(32, 700), between(1, 300)});
    case Profile::kMixed: return pick({1, 1, 1, 4, 16, 32, 64, between(2, 64), between(65, 500)});
  }
  return 1;
}

// Cached tokens: where keys are cut, and where kernels stop or begin, more often than elsewhere.
int32_t CaseDrawer::context(int32_t rows) {
  const int32_t edge = profile_ == Profile::kManyShort || profile_ == Profile::kAny
                           ? pick({0, 1, 16, 32, 63, 64, 128, 256, 384, 512, 640})
                           : pick({0, 1, 64, 128, 512, 1024, 2048, 2048, 4096, 4096, 8192, 8192, 12288, 16384, 20480,
                                   24576, 32768, 36864});
  const int32_t drawn = chance(0.5) ? edge + pick({0, 0, -1, 1, -rows, 1 - rows, -rows - 1, between(-70, 70)})
                                    : (chance(0.5) ? logarithmic(most_context_) : between(0, most_context_));
  if (profile_ == Profile::kOneLong && drawn < 2000) return between(2000, most_context_);
  return std::clamp(drawn, 0, most_context_);
}

void CaseDrawer::draw_kind(RequestCase& r) {
  r.kind = pick({Kind::kCausal, Kind::kCausal, Kind::kCausal, Kind::kBlock, Kind::kBlock, Kind::kFull, Kind::kNone,
                 Kind::kPrefixFull});
  r.block_size = pick({1, 2, 4, 4, 8, 16, 32, 64});
  if (r.kind == Kind::kBlock && chance(0.5)) r.prefix -= r.prefix % r.block_size;
  if (r.kind == Kind::kNone) r.prefix = std::max(r.prefix, r.new_tokens);
  if (r.kind == Kind::kPrefixFull && profile_ == Profile::kOneLong) r.kind = Kind::kCausal;
  if (r.kind == Kind::kPrefixFull) {
    r.prefix = 0;
    r.prompt_len = between(0, r.new_tokens);
    r.padded_prompt_len = between(r.prompt_len, r.new_tokens + 3);
  }
  if (c_.type == AttentionType::kEncoderOnly) r.prefix = 0, r.kind = Kind::kCausal;
  const bool segment = r.kind == Kind::kFull || r.kind == Kind::kBlock;
  if (segment && chance(0.3)) r.window_from = KeySpan::WindowFrom::kSegment;
  if (r.kind != Kind::kNone && r.kind != Kind::kPrefixFull && chance(0.07)) r.gap = between(1, 100);
}

void CaseDrawer::draw_hole(RequestCase& r) {
  if (r.prefix < 2 || r.kind == Kind::kPrefixFull || !chance(0.15)) return;
  r.hole_begin = chance(0.2) ? 0 : between(0, r.prefix - 1);
  r.hole_end = chance(0.2) ? r.prefix : between(r.hole_begin, r.prefix);
  if (chance(0.7)) r.log_shift = r.hole_end - r.hole_begin;
}

RequestCase CaseDrawer::request() {
  RequestCase r{.new_tokens = rows()};
  r.prefix = context(r.new_tokens);
  if (c_.source == RadixAttentionConfig::KeySource::kCrossAttention) {
    r.encoder_len = std::exchange(r.prefix, 0);
    return r;
  }
  draw_kind(r);
  const size_t donor = c_.requests.size();
  if (donor > 0 && c_.requests[0].hole_end == 0 && c_.requests[0].kind != Kind::kPrefixFull && chance(0.4)) {
    r.shares_with = chance(0.5) ? 0 : static_cast<size_t>(random_.below(static_cast<int64_t>(donor)));
    if (c_.requests[*r.shares_with].hole_end > 0) r.shares_with = 0;
  } else {
    draw_hole(r);
  }
  return r;
}

double CaseDrawer::products_of(const RequestCase& r) const {
  return static_cast<double>(r.prefix + r.new_tokens + r.encoder_len) * r.new_tokens * c_.num_heads * dims();
}

double CaseDrawer::elements_of(const RequestCase& r) const {
  const int32_t shared = r.shares_with ? std::min(r.prefix, c_.requests[*r.shares_with].prefix) : 0;
  const int32_t slots = r.prefix - shared + r.gap + r.new_tokens + r.encoder_len + c_.page_size;
  return static_cast<double>(slots) * c_.num_kv_heads * dims();
}

void CaseDrawer::draw_requests() {
  c_.requests.clear();
  const int32_t wanted = num_requests();
  most_rows_ = std::max(1, (profile_ == Profile::kCrowd ? 64 : pick({1, 8, 16, 40})) / group());
  most_context_ = is_many() ? pick({300, 384, 640, 700}) - most_rows_ : profile_ == Profile::kAny ? 300 : 40000;
  if (wanted > 12) {  // so that the first few leave something to the others
    const double slots = elements_ / (static_cast<double>(wanted) * c_.num_kv_heads * dims()),
                 keys = products_ / (static_cast<double>(wanted) * most_rows_ * c_.num_heads * dims());
    const double fair = is_many() ? std::min(1.5 * slots - c_.page_size, 1.5 * keys - most_rows_) : 3 * slots;
    most_context_ = std::min(most_context_, 4 + static_cast<int32_t>(std::max(0.0, fair)));
  }
  for (int32_t tries = 0; tries < 16 + 4 * wanted && static_cast<int32_t>(c_.requests.size()) < wanted; ++tries) {
    const RequestCase r = request();
    if (products_of(r) > products_ || elements_of(r) > elements_) continue;
    products_ -= products_of(r), elements_ -= elements_of(r);
    c_.requests.push_back(r);
  }
  if (c_.requests.empty()) c_.requests.push_back({.prefix = 5});
}

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kCausal: return "causal";
    case Kind::kBlock: return "block";
    case Kind::kFull: return "full";
    case Kind::kPrefixFull: return "prefix full";
    case Kind::kNone: return "none";
  }
  return "unknown";
}

}  // namespace

AttentionCase random_attention_case(uint64_t seed, double most_products) {
  return CaseDrawer(seed, most_products).draw();
}

std::string summary_of(const RequestCase& r) {
  std::string text = str(name_of(r.kind), ", ", r.new_tokens, " rows behind ", r.prefix);
  if (r.gap > 0) text += str(" and a gap of ", r.gap);
  if (r.kind == Kind::kBlock || r.kind == Kind::kPrefixFull) text += str(", blocks of ", r.block_size);
  if (r.kind == Kind::kPrefixFull) text += str(", prompt ", r.prompt_len, " of ", r.padded_prompt_len);
  if (r.hole_end > 0) text += str(", hole ", r.hole_begin, " to ", r.hole_end, " shift ", r.log_shift);
  if (r.window_from == KeySpan::WindowFrom::kSegment) text += ", window of the segment";
  if (r.encoder_len > 0) text += str(", encoder ", r.encoder_len);
  if (r.shares_with) text += str(", pages of request ", *r.shares_with);
  return text;
}

std::string summary_of(const AttentionCase& c) {
  int32_t rows = 0, most = 0, keys = 0;
  for (const RequestCase& r : c.requests) {
    rows += r.new_tokens, most = std::max(most, r.new_tokens);
    keys = std::max(keys, r.prefix + r.new_tokens + r.encoder_len);
  }
  std::string text =
      str(c.requests.size(), " requests, ", rows, " rows (", most, " at most), ", keys, " keys; ", c.num_heads, "/",
          c.num_kv_heads, " heads of ", c.head_dim, "/", c.v_head_dim.value_or(c.head_dim), ", ", name_of(c.dtype),
          ", pool ", name_of(c.pool_dtype), ", pages of ", c.page_size);
  if (c.window) text += str(", window ", *c.window);
  if (c.logit_cap > 0) text += str(", cap ", c.logit_cap);
  if (c.type != AttentionType::kDecoder) text += str(", ", name_of(c.type));
  if (c.source == RadixAttentionConfig::KeySource::kCrossAttention) text += ", cross attention";
  if (c.rows != AttentionCase::Rows::kDense) text += ", fused rows";
  if (c.rows == AttentionCase::Rows::kFused) text += " anywhere";
  if (c.pool_layout == KVLayout::kTokenMajor) text += ", token-major";
  if (c.new_keys == AttentionCase::NewKeys::kInPool) text += ", keys in the pool";
  if (c.save == SaveKV::kNo) text += ", not saved";
  if (c.values == AttentionCase::Values::kInfinite) text += ", infinite values";
  if (c.padding_rows > 0) text += str(", padding ", c.padding_rows);
  return text;
}

}  // namespace headrace::testing_support
