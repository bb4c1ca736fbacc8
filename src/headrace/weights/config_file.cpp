#include "headrace/weights/config_file.h"

#include <simdjson.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

#include "headrace/core/foreign_content.h"
#include "headrace/core/mapped_file.h"
#include "headrace/core/printable.h"
#include "headrace/core/python_json.h"

namespace headrace {
namespace {

namespace dom = simdjson::dom;
constexpr size_t kMaxConfigDepth = 64;
constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;

std::string_view name_of(JsonValue::Kind kind) {
  switch (kind) {
    case JsonValue::Kind::kNull: return "null";
    case JsonValue::Kind::kBool: return "a boolean";
    case JsonValue::Kind::kInt: return "an integer";
    case JsonValue::Kind::kFloat: return "a number with a fraction";
    case JsonValue::Kind::kBeyond: return "a number beyond 64 bits";
    case JsonValue::Kind::kString: return "a string";
    case JsonValue::Kind::kArray: return "an array";
    case JsonValue::Kind::kObject: return "an object";
  }
  return "unknown";
}

}  // namespace

// Copies a parsed document into values. The depth is bounded by the parser, so recursion is too.
struct JsonBuilder {
  std::string file;

  JsonValue build(dom::element in, const std::string& path) const {
    JsonValue out;
    out.where_ = str(file, ": ", path.empty() ? "the top level" : path);
    switch (in.type()) {
      case dom::element_type::NULL_VALUE: break;
      case dom::element_type::BOOL: out.kind_ = JsonValue::Kind::kBool, out.bool_ = bool(in); break;
      case dom::element_type::INT64: out.kind_ = JsonValue::Kind::kInt, out.int_ = int64_t(in); break;
      case dom::element_type::UINT64: out.kind_ = JsonValue::Kind::kBeyond, out.string_ = str(uint64_t(in)); break;
      case dom::element_type::DOUBLE: out.kind_ = JsonValue::Kind::kFloat, out.float_ = double(in); break;
      case dom::element_type::STRING: build_string(in, out); break;
      case dom::element_type::ARRAY: build_array(in, path, out); break;
      case dom::element_type::OBJECT: build_object(in, path, out); break;
    }
    return out;
  }

  static void build_string(std::string_view in, JsonValue& out) {
    const auto number = marked_number(in);
    out.kind_ = number ? JsonValue::Kind::kBeyond : JsonValue::Kind::kString;
    out.string_ = std::string(number.value_or(in));
    if (!number) return;
    const auto [end, error] = std::from_chars(number->data(), number->data() + number->size(), out.int_);
    if (error == std::errc() && end == number->data() + number->size()) out.kind_ = JsonValue::Kind::kInt;
  }

  void build_array(dom::element in, const std::string& path, JsonValue& out) const {
    out.kind_ = JsonValue::Kind::kArray;
    for (const dom::element item : dom::array(in))
      out.items_.push_back(build(item, str(path, "[", out.items_.size(), "]")));
  }

  void build_object(dom::element in, const std::string& path, JsonValue& out) const {
    out.kind_ = JsonValue::Kind::kObject;
    std::map<std::string_view, size_t> places;
    for (const auto [key, value] : dom::object(in)) {
      JsonValue member = build(value, str(path, path.empty() ? "" : ".", printable(key)));
      const auto [place, is_new] = places.emplace(key, out.members_.size());
      if (is_new) {
        out.members_.emplace_back(std::string(key), std::move(member));
      } else {
        out.members_[place->second].second = std::move(member);
      }
    }
  }
};

JsonValue JsonValue::parse(std::string_view text, std::string_view file) {
  dom::parser parser;
  const simdjson::padded_string padded(text);
  HR_REQUIRE(parser.allocate(text.size() + 1, kMaxConfigDepth + 1) == simdjson::SUCCESS, ErrorCode::kOutOfMemory, file,
             ": no memory to parse ", text.size(), " bytes");
  dom::element root;
  simdjson::error_code error = parser.parse(padded).get(root);
  if (error != simdjson::SUCCESS) {
    if (const auto marked = with_marked_numbers(text)) error = parser.parse(simdjson::padded_string(*marked)).get(root);
  }
  HR_REQUIRE(error == simdjson::SUCCESS, ErrorCode::kModelFile, file,
             ": not valid JSON: ", simdjson::error_message(error));
  return JsonBuilder{std::string(file)}.build(root, "");
}

void JsonValue::require(Kind kind) const {
  HR_REQUIRE(kind_ == kind, ErrorCode::kModelFile, where_, " is ", name_of(kind_), ", expected ", name_of(kind));
}

bool JsonValue::as_bool() const { return require(Kind::kBool), bool_; }
const std::string& JsonValue::as_string() const { return require(Kind::kString), string_; }
const std::vector<JsonValue>& JsonValue::as_array() const { return require(Kind::kArray), items_; }
const std::vector<JsonValue::Member>& JsonValue::as_object() const { return require(Kind::kObject), members_; }

int64_t JsonValue::as_int(int64_t min, int64_t max) const {
  HR_REQUIRE(kind_ != Kind::kBeyond, ErrorCode::kModelFile, where_, " is ", printable(string_), ", expected ", min,
             " to ", max);
  require(Kind::kInt);
  HR_REQUIRE(int_ >= min && int_ <= max, ErrorCode::kModelFile, where_, " is ", int_, ", expected ", min, " to ", max);
  return int_;
}

double JsonValue::as_float() const {
  if (kind_ == Kind::kInt) return static_cast<double>(int_);
  if (kind_ == Kind::kBeyond) {
    const double value = std::strtod(string_.c_str(), nullptr);
    HR_REQUIRE(std::isfinite(value), ErrorCode::kModelFile, where_, " is ", printable(string_),
               ", expected a finite number");
    return value;
  }
  HR_REQUIRE(kind_ == Kind::kFloat, ErrorCode::kModelFile, where_, " is ", name_of(kind_), ", expected a number");
  return float_;
}

std::vector<int64_t> JsonValue::as_ints(int64_t min, int64_t max) const {
  std::vector<int64_t> out;
  for (const JsonValue& item : as_array()) out.push_back(item.as_int(min, max));
  return out;
}

std::vector<std::string> JsonValue::as_strings() const {
  std::vector<std::string> out;
  for (const JsonValue& item : as_array()) out.push_back(item.as_string());
  return out;
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const Member& member : as_object())
    if (member.first == key) return member.second.is_null() ? nullptr : &member.second;
  return nullptr;
}

const JsonValue& JsonValue::at(std::string_view key) const {
  const JsonValue* found = find(key);
  HR_REQUIRE(found, ErrorCode::kModelFile, where_, " has no '", key, "'");
  return *found;
}

int64_t JsonValue::int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
  const JsonValue* found = find(key);
  return found ? found->as_int(min, max) : fallback;
}

double JsonValue::float_or(std::string_view key, double fallback) const {
  const JsonValue* found = find(key);
  return found ? found->as_float() : fallback;
}

bool JsonValue::bool_or(std::string_view key, bool fallback) const {
  const JsonValue* found = find(key);
  return found ? found->as_bool() : fallback;
}

std::string JsonValue::string_or(std::string_view key, std::string_view fallback) const {
  const JsonValue* found = find(key);
  return found ? found->as_string() : std::string(fallback);
}

JsonValue read_json_file(const std::filesystem::path& path) {
  const OpenFile file(path);
  HR_REQUIRE(file.bytes() <= kMaxFileBytes, ErrorCode::kModelFile, path.string(), ": ", file.bytes(),
             " bytes, at most ", kMaxFileBytes, " are read");
  std::string text(file.bytes(), '\0');
  file.read(0, text.data(), text.size());
  refuse_foreign_content(path.string(), text);
  return JsonValue::parse(text, path.string());
}

}  // namespace headrace
