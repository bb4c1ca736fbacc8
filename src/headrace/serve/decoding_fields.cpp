#include "headrace/serve/decoding_fields.h"

#include <array>
#include <utility>

#include "headrace/core/printable.h"
#include "headrace/decoding/decoding_option.h"
#include "headrace/serve/request_field.h"
#include "headrace/text/json_string.h"

namespace headrace {
namespace {

using DecodingField = RequestField<DecodingParams>;
using Rule = DecodingParams::Rule;
using Schedule = DecodingParams::Schedule;

constexpr int32_t kMostPasses = 1 << 20, kMostCandidates = 64;
constexpr double kMostScale = 1e3;
constexpr std::string_view kShareSchema = R"({"type": "number", "minimum": 0, "maximum": 1})",
                           kScaleSchema = R"({"type": "number", "minimum": 0, "maximum": 1000})";

// `choices`: their names are text_of().
template <class Choice, size_t N>
Choice choice_of(const JsonNode& node, const std::array<Choice, N>& choices) {
  std::string names;
  for (const Choice choice : choices) {
    if (node.is_string() && node.text() == text_of(choice)) return choice;
    names += str(names.empty() ? "" : ", ", text_of(choice));
  }
  node.refuse("one of " + names);
}

void read_rule(DecodingParams& p, const JsonNode& node) {
  constexpr std::array kRules = {Rule::kConfidence,   Rule::kMargin,   Rule::kEntropy,
                                 Rule::kEntropyBound, Rule::kLeftmost, Rule::kRandom};
  p.rule = choice_of(node, kRules);
}

void read_schedule(DecodingParams& p, const JsonNode& node) {
  p.schedule = choice_of(node, std::array{Schedule::kThreshold, Schedule::kReference});
}

float share(const JsonNode& node) { return static_cast<float>(node.number(0, 1)); }
float scale(const JsonNode& node) { return static_cast<float>(node.number(0, kMostScale)); }

constexpr std::array kDecodingFields = {
    DecodingField{"schedule", DecodingField::Other{"threshold or reference", read_schedule,
                                                   R"({"enum": ["threshold", "reference"]})"}},
    DecodingField{"accept",
                  DecodingField::Other{
                      "a rule", read_rule,
                      R"({"enum": ["confidence", "margin", "entropy", "entropy_bound", "leftmost", "random"]})"}},
    DecodingField{"steps",
                  DecodingField::Integer{1, kMostPasses,
                                         [](DecodingParams& p, int64_t n) { p.steps = static_cast<int32_t>(n); }}},
    DecodingField{"max_passes",
                  DecodingField::Integer{1, kMostPasses,
                                         [](DecodingParams& p, int64_t n) { p.max_passes = static_cast<int32_t>(n); }}},
    DecodingField{"max_edits",
                  DecodingField::Integer{0, kMostPasses,
                                         [](DecodingParams& p, int64_t n) { p.max_edits = static_cast<int32_t>(n); }}},
    DecodingField{
        "merge_candidates",
        DecodingField::Integer{1, kMostCandidates,
                               [](DecodingParams& p, int64_t n) { p.merge_candidates = static_cast<int32_t>(n); }}},
    DecodingField{"threshold",
                  DecodingField::Other{"a number", [](DecodingParams& p, const JsonNode& n) { p.threshold = scale(n); },
                                       kScaleSchema}},
    DecodingField{
        "edit_threshold",
        DecodingField::Other{"a share", [](DecodingParams& p, const JsonNode& n) { p.edit_threshold = share(n); },
                             kShareSchema}},
    DecodingField{
        "remask_threshold",
        DecodingField::Other{"a share", [](DecodingParams& p, const JsonNode& n) { p.remask_threshold = share(n); },
                             kShareSchema}},
    DecodingField{"add_block",
                  DecodingField::Other{"a share", [](DecodingParams& p, const JsonNode& n) { p.add_block = share(n); },
                                       kShareSchema}},
    DecodingField{"stability",
                  DecodingField::Other{"a share", [](DecodingParams& p, const JsonNode& n) { p.stability = share(n); },
                                       kShareSchema}},
    DecodingField{
        "semi_complete",
        DecodingField::Other{"a share", [](DecodingParams& p, const JsonNode& n) { p.semi_complete = share(n); },
                             kShareSchema}},
    DecodingField{
        "order_temperature",
        DecodingField::Other{"a number", [](DecodingParams& p, const JsonNode& n) { p.order_temperature = scale(n); },
                             kScaleSchema}},
    DecodingField{
        "copy_penalty",
        DecodingField::Other{"a number", [](DecodingParams& p, const JsonNode& n) { p.copy_penalty = scale(n); },
                             kScaleSchema}},
    DecodingField{"cfg_scale",
                  DecodingField::Other{"a number", [](DecodingParams& p, const JsonNode& n) { p.cfg_scale = scale(n); },
                                       kScaleSchema}},
};

}  // namespace

void read_decoding(DecodingParams& params, const JsonNode& decoding) {
  const std::string prefix = decoding.name() + ".";
  for (const JsonNode& member : decoding.members(prefix)) {
    bool is_known = false;
    for (const DecodingField& field : kDecodingFields) {
      if (str(prefix, field.name) != member.name()) continue;
      const std::array one = {DecodingField{member.name(), field.kind}};
      is_known = read_field<DecodingParams>(one, params, member);
    }
    require_field(is_known, member.name(), str(printable(member.name()), " is unknown"));
  }
}

std::string decoding_schema() {
  std::vector<FieldDescription> fields;
  describe_fields<DecodingParams>(kDecodingFields, fields);
  std::string out = R"({"type": "object", "additionalProperties": false, "properties": {)";
  const char* before = "";
  for (const FieldDescription& field : fields) {
    out += str(std::exchange(before, ", "), json_string(field.name), R"(: {"anyOf": [)", field.schema,
               R"(, {"type": "null"}]})");
  }
  return out + "}}";
}

}  // namespace headrace
