#include "chat_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <type_traits>
#include <variant>

#include "headrace/core/error.h"
#include "headrace/text/json_string.h"
#include "prompt.h"
#include "sampling_flags.h"

namespace headrace::app {
namespace {

using Texts = std::vector<std::string>;
// The place of a setting. bool: show or hide. int32_t: kUntilFull is written as -1.
using Field = std::variant<bool*, float*, int32_t*, Texts*, std::optional<bool>*, std::optional<float>*,
                           std::optional<int32_t>*, std::optional<uint64_t>*>;

struct Setting {
  std::string_view name, expected;
  Field (*field)(ChatSettings&);
};

constexpr std::string_view kNumber = "a number", kInteger = "an integer";

const Setting kSettings[] = {
    {"temperature", kNumber, [](ChatSettings& s) -> Field { return &s.sampling.temperature; }},
    {"top_k", kInteger, [](ChatSettings& s) -> Field { return &s.sampling.top_k; }},
    {"top_p", kNumber, [](ChatSettings& s) -> Field { return &s.sampling.top_p; }},
    {"min_p", kNumber, [](ChatSettings& s) -> Field { return &s.sampling.min_p; }},
    {"repetition_penalty", kNumber, [](ChatSettings& s) -> Field { return &s.sampling.repetition_penalty; }},
    {"presence_penalty", kNumber, [](ChatSettings& s) -> Field { return &s.sampling.params.presence_penalty; }},
    {"frequency_penalty", kNumber, [](ChatSettings& s) -> Field { return &s.sampling.params.frequency_penalty; }},
    {"seed", "an integer, or -1: another one for each answer",
     [](ChatSettings& s) -> Field { return &s.sampling.params.seed; }},
    {"max_tokens", "an integer, or -1: until the context is full",
     [](ChatSettings& s) -> Field { return &s.sampling.params.max_tokens; }},
    {"stop", "a text that ends an answer", [](ChatSettings& s) -> Field { return &s.sampling.params.stop; }},
    {"thinking", "show or hide", [](ChatSettings& s) -> Field { return &s.shows_thinking; }},
    {"enable_thinking", "true or false, for the chat template",
     [](ChatSettings& s) -> Field { return &s.enable_thinking; }}};

const Setting& setting_of(std::string_view name) {
  std::string spelled(name);
  std::ranges::replace(spelled, '-', '_');
  const Setting* found = std::ranges::find(kSettings, std::string_view(spelled), &Setting::name);
  if (found != std::end(kSettings)) return *found;
  Texts names;
  for (const Setting& s : kSettings) names.emplace_back(s.name);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no setting '{}', expected one of: {}", name, fmt::join(names, ", ")));
}

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool read_flag(std::string_view text, bool& value, std::string_view yes, std::string_view no) {
  value = text == yes || text == "on" || text == "yes";
  return value || text == no || text == "off" || text == "no";
}

// Returns false for a text that is no value.
struct Reader {
  std::string_view text;

  bool operator()(bool* value) const { return read_flag(text, *value, "show", "hide"); }
  bool operator()(float* value) const { return read_number(text, *value); }
  bool operator()(int32_t* value) const {
    if (!read_number(text, *value)) return false;
    if (*value == -1) *value = kUntilFull;
    return true;
  }
  bool operator()(Texts* value) const {
    *value = {unescaped(text)};
    return true;
  }
  bool operator()(std::optional<bool>* value) const { return read_flag(text, value->emplace(), "true", "false"); }
  bool operator()(std::optional<float>* value) const { return read_number(text, value->emplace()); }
  bool operator()(std::optional<int32_t>* value) const { return read_number(text, value->emplace()); }
  bool operator()(std::optional<uint64_t>* value) const {
    if (text != "-1") return read_number(text, value->emplace());
    value->reset();
    return true;
  }
};

std::string setting_json(bool shows) { return shows ? R"("show")" : R"("hide")"; }
std::string setting_json(float number) { return fmt::format("{}", number); }
std::string setting_json(int32_t number) { return std::to_string(number == kUntilFull ? -1 : number); }
std::string setting_json(const Texts& texts) {
  Texts items;
  for (const std::string& text : texts) items.push_back(json_string(text));
  return fmt::format("[{}]", fmt::join(items, ", "));
}
// JSON's readers are sure of 53 bits.
std::string setting_json(const std::optional<uint64_t>& number) {
  if (!number) return "";
  return *number < uint64_t{1} << 53 ? std::to_string(*number) : fmt::format(R"("{}")", *number);
}
template <class T>
std::string setting_json(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "";
}

std::string setting_json(const Setting& setting, ChatSettings settings) {
  return std::visit([](const auto* value) { return setting_json(*value); }, setting.field(settings));
}

// Settings without a choice.
ChatSettings unset_of(const ChatSettings& settings) {
  ChatSettings unset;
  unset.sampling.params.max_tokens = unset.default_max_tokens = settings.default_max_tokens;
  return unset;
}

void reset(ChatSettings& settings, const Setting& setting) {
  ChatSettings unset = unset_of(settings);
  std::visit([&](auto* value) { *value = *std::get<std::remove_reference_t<decltype(value)>>(setting.field(unset)); },
             setting.field(settings));
}

std::string setting_text(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kString: return value.as_string();
    case JsonValue::Kind::kBool: return value.as_bool() ? "true" : "false";
    case JsonValue::Kind::kInt: return std::to_string(value.as_int(std::numeric_limits<int64_t>::min()));
    default: return fmt::format("{}", value.as_float());
  }
}

}  // namespace

void set(ChatSettings& settings, std::string_view name, std::string_view value) {
  const Setting& setting = setting_of(name);
  ChatSettings changed = settings;
  if (value == "default") {
    reset(changed, setting);
  } else {
    HR_REQUIRE(std::visit(Reader{value}, setting.field(changed)), ErrorCode::kInvalidArgument, setting.name, " is '",
               value, "', expected ", setting.expected);
  }
  validate(params_of(changed.sampling, {}));
  settings = std::move(changed);
}

std::vector<std::pair<std::string, std::string>> chosen(const ChatSettings& settings) {
  std::vector<std::pair<std::string, std::string>> params;
  for (const Setting& setting : kSettings) {
    std::string value = setting_json(setting, settings);
    if (value != setting_json(setting, unset_of(settings))) params.emplace_back(setting.name, std::move(value));
  }
  return params;
}

void set_all(ChatSettings& settings, const JsonValue& params) {
  ChatSettings changed = settings;
  for (const Setting& setting : kSettings) reset(changed, setting);
  for (const auto& [name, value] : params.as_object()) {
    if (name == "stop") {
      changed.sampling.params.stop = value.as_strings();
    } else {
      set(changed, name, setting_text(value));
    }
  }
  settings = std::move(changed);
}

std::string settings_text(const ChatSettings& settings, const SamplingParams& defaults) {
  ChatSettings all = settings;
  const SamplingParams effective = params_of(settings.sampling, defaults);
  all.sampling.temperature = effective.temperature;
  all.sampling.top_k = effective.top_k;
  all.sampling.top_p = effective.top_p;
  all.sampling.min_p = effective.min_p;
  all.sampling.repetition_penalty = effective.repetition_penalty;
  std::string lines;
  for (const Setting& setting : kSettings) {
    const std::string value = setting_json(setting, all);
    lines += fmt::format("{:<18}  {:<8}  {}\n", setting.name, value.empty() ? "default" : value, setting.expected);
  }
  return lines;
}

}  // namespace headrace::app
