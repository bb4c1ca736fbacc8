#include "headrace/weights/gguf_rotary.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/core/printable.h"
#include "headrace/weights/json_members.h"

namespace headrace {
namespace {

// The share of a head that rotates, such that `dims` is its whole part.
double rotary_share(int64_t dims, int64_t head_dim) {
  const double share = static_cast<double>(dims) / static_cast<double>(head_dim);
  return static_cast<int64_t>(static_cast<double>(head_dim) * share) == dims ? share : std::nextafter(share, 1.0);
}

void read_rotated_share(const GgufRotary& c, JsonMembers& rope) {
  const auto stated = c.keys.integer("rope.dimension_count", 2, c.head_dim);
  c.keys.require(stated || !c.is_hybrid, "rope.dimension_count", "is missing");
  const int64_t dims = stated.value_or(c.head_dim);
  c.keys.require(dims % 2 == 0 && (c.is_hybrid || dims == c.head_dim), "rope.dimension_count", "is ", dims,
                 ", expected ", c.is_hybrid ? "an even number" : str("whole heads of ", c.head_dim));
  if (c.is_hybrid) rope.add_number("partial_rotary_factor", rotary_share(dims, c.head_dim));
}

// Sections of time, height and width, and one more that is 0.
void read_sections(const GgufRotary& c, JsonMembers& rope) {
  const auto* const sections = c.keys.header().integers(c.keys.key("rope.dimension_sections"));
  if (sections == nullptr || !c.is_hybrid) return;
  c.keys.require(sections->size() == 4 && sections->back() == 0, "rope.dimension_sections",
                 "expected four numbers, the last one 0");
  rope.add_array("mrope_section", std::span(*sections).first(3), [](int64_t pairs) { return str(pairs); });
  rope.add_flag("mrope_interleaved", true);
}

void read_yarn(const GgufRotary& c, JsonMembers& rope) {
  rope.add("original_max_position_embeddings",
           c.keys.integer("rope.scaling.original_context_length", 1, 1 << 30).value_or(c.context));
  if (const auto fast = c.keys.number("rope.scaling.yarn_beta_fast")) rope.add_number("beta_fast", *fast);
  if (const auto slow = c.keys.number("rope.scaling.yarn_beta_slow")) rope.add_number("beta_slow", *slow);
}

void read_divisors(const GgufRotary& c, JsonMembers& rope) {
  const std::vector<float> divisors = c.parts.floats("rope_freqs.weight");
  const bool good = std::cmp_equal(divisors.size(), c.head_dim / 2) &&
                    std::ranges::all_of(divisors, [](float by) { return std::isfinite(by) && by > 0; });
  HR_REQUIRE(good, ErrorCode::kModelFile, c.keys.header().file(), ": tensor 'rope_freqs.weight': expected ",
             c.head_dim / 2, " finite numbers above 0");
  rope.add("rope_type", "divided");
  rope.add_array("divisors", divisors, [](float by) { return JsonMembers::number_text(by); });
}

void read_scaling(const GgufRotary& c, JsonMembers& rope) {
  const std::string_view type = c.keys.header().text(c.keys.key("rope.scaling.type")).value_or("none");
  const bool divided = c.parts.has("rope_freqs.weight");
  HR_REQUIRE(type == "none" || ((type == "linear" || type == "yarn") && !divided), ErrorCode::kUnsupported,
             c.keys.header().file(), ": key '", c.keys.key("rope.scaling.type"), "': is '", printable(type), "'",
             divided ? " beside rope_freqs.weight" : "", ", which is not built; built are: none, linear, yarn");
  if (divided) return read_divisors(c, rope);
  rope.add("rope_type", type == "none" ? "default" : type);
  if (type == "none") return;
  const auto factor = c.keys.number("rope.scaling.factor");
  c.keys.require(factor && *factor > 0, "rope.scaling.factor", "expected a number above 0");
  rope.add_number("factor", *factor);
  if (type == "yarn") read_yarn(c, rope);
}

}  // namespace

std::string rope_parameters(const GgufRotary& c) {
  JsonMembers rope;
  rope.add_number("rope_theta", c.keys.number("rope.freq_base").value_or(10000));
  read_rotated_share(c, rope);
  read_sections(c, rope);
  read_scaling(c, rope);
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"})
    HR_REQUIRE(!c.parts.has(name), ErrorCode::kUnsupported, c.keys.header().file(), ": tensor '", name,
               "': scaling by two lists of factors is not built");
  return rope.object();
}

}  // namespace headrace
