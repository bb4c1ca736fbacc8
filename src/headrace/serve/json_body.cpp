#include "headrace/serve/json_body.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>
#include <set>

#include "headrace/core/printable.h"
#include "headrace/core/python_json.h"

namespace headrace {
namespace {

namespace dom = simdjson::dom;

std::string number_text(double value) {
  return value == std::trunc(value) && std::abs(value) < 1e15 ? str(static_cast<int64_t>(value)) : str(value);
}

std::optional<uint32_t> unit_at(std::string_view text, size_t at) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return std::nullopt;
  uint32_t unit = 0;
  for (const char c : text.substr(at + 2, 4)) {
    const size_t digit = std::string_view("0123456789abcdef").find(static_cast<char>(c | 0x20));
    if (digit == std::string_view::npos) return std::nullopt;
    unit = unit * 16 + static_cast<uint32_t>(digit);
  }
  return unit;
}

bool is_high_surrogate(std::optional<uint32_t> unit) { return unit && *unit >= 0xd800 && *unit < 0xdc00; }
bool is_low_surrogate(std::optional<uint32_t> unit) { return unit && *unit >= 0xdc00 && *unit < 0xe000; }

// Returns `text` with \ufffd in place of escapes that are half a surrogate pair: Python writes them for text that is
// not UTF-8.
std::string without_lone_surrogates(std::string_view text) {
  std::string out(text);
  for (size_t at = out.find('\\'); at != std::string::npos; at = out.find('\\', at)) {
    const std::optional<uint32_t> unit = unit_at(out, at);
    if (is_high_surrogate(unit) && is_low_surrogate(unit_at(out, at + 6))) {
      at += 12;
      continue;
    }
    if (is_high_surrogate(unit) || is_low_surrogate(unit)) out.replace(at, 6, "\\ufffd");
    at += 2;
  }
  return out;
}

std::string sentence_of(simdjson::error_code error, std::string_view what) {
  if (error == simdjson::DEPTH_ERROR) return str(what, " has nesting deeper than ", JsonBody::kMaxDepth);
  return str(what, " is not valid JSON: ", simdjson::error_message(error));
}

}  // namespace

JsonBody::JsonBody(std::string_view text, std::string_view what)
    : what_(what), parser_(std::make_unique<dom::parser>()) {
  const auto parse = [this](std::string_view json) {
    const simdjson::padded_string padded(json);  // empty if there is no memory for it
    if (padded.size() != json.size() || parser_->allocate(json.size() + 1, kMaxDepth) == simdjson::MEMALLOC)
      throw std::bad_alloc();
    return parser_->parse(padded).get(root_);
  };
  simdjson::error_code error = parse(text);
  std::string repaired;
  if (error == simdjson::STRING_ERROR) error = parse(repaired = without_lone_surrogates(text));
  if (error != simdjson::SUCCESS && error != simdjson::DEPTH_ERROR) {
    const auto marked = with_marked_numbers(repaired.empty() ? text : repaired);
    has_marks_ = marked && parse(*marked) == simdjson::SUCCESS;
    if (has_marks_) error = simdjson::SUCCESS;
  }
  if (error != simdjson::SUCCESS) throw RequestError(400, sentence_of(error, what));
  if (!root_.is_object()) root().refuse("a JSON object");
}

std::string_view JsonNode::number_mark() const {
  std::string_view text;
  if (!has_marks_ || value_.get(text) != simdjson::SUCCESS) return {};
  return marked_number(text).value_or(std::string_view());
}

std::string JsonNode::found() const {
  if (const std::string_view number = number_mark(); !number.empty()) return printable(number);
  switch (value_.type()) {
    case dom::element_type::NULL_VALUE: return "null";
    case dom::element_type::BOOL: return bool(value_) ? "true" : "false";
    case dom::element_type::INT64: return str(int64_t(value_));
    case dom::element_type::UINT64: return str(uint64_t(value_));
    case dom::element_type::DOUBLE: return str(double(value_));
    case dom::element_type::STRING: return "a string";
    case dom::element_type::ARRAY: return "an array";
    case dom::element_type::OBJECT: return "an object";
  }
  return "unknown";
}

void JsonNode::refuse(std::string_view expected) const {
  throw RequestError(400, str(name_, " is ", found(), ", expected ", expected), name_);
}

bool JsonNode::flag() const {
  bool flag = false;
  if (value_.get(flag) != simdjson::SUCCESS) refuse("true or false");
  return flag;
}

int64_t JsonNode::integer(int64_t least, int64_t most) const {
  int64_t value = 0;
  if (value_.get(value) != simdjson::SUCCESS || value < least || value > most)
    refuse(str("an integer from ", least, " to ", most));
  return value;
}

double JsonNode::number(double least, double most) const {
  double value = 0;
  if (value_.get(value) != simdjson::SUCCESS || !(value >= least && value <= most))
    refuse(str("a number from ", number_text(least), " to ", number_text(most)));
  return value;
}

std::string JsonNode::text() const {
  if (!is_string()) refuse("a string");
  return std::string(std::string_view(value_));
}

std::vector<JsonNode> JsonNode::items(size_t most) const {
  dom::array array;
  if (value_.get(array) != simdjson::SUCCESS) refuse("an array");
  std::vector<JsonNode> items;
  for (const dom::element item : array) {
    if (items.size() == most) break;
    items.emplace_back(item, str(name_, "[", items.size(), "]"), has_marks_);
  }
  return items;
}

std::vector<JsonNode> JsonNode::members(std::string_view prefix) const {
  dom::object object;
  if (value_.get(object) != simdjson::SUCCESS) refuse("an object");
  std::vector<JsonNode> members;
  std::set<std::string_view> names;
  for (const auto [name, value] : object) {
    if (!names.insert(name).second) {
      throw RequestError(400, str(prefix, printable(name), " occurs twice, expected once"), str(prefix, name));
    }
    members.emplace_back(value, str(prefix, name), has_marks_);
  }
  return members;
}

size_t JsonNode::num_members() const {
  dom::object object;
  if (value_.get(object) != simdjson::SUCCESS) refuse("an object");
  return object.size();
}

std::vector<int32_t> JsonNode::integers(int32_t least, int32_t most) const {
  dom::array array;
  if (value_.get(array) != simdjson::SUCCESS) refuse("an array");
  std::vector<int32_t> integers;
  for (const dom::element item : array) {
    int64_t value = 0;
    if (item.get(value) != simdjson::SUCCESS || value < least || value > most) {
      const std::string name = str(name_, "[", integers.size(), "]");
      JsonNode(item, name, has_marks_).refuse(str("an integer from ", least, " to ", most));
    }
    integers.push_back(static_cast<int32_t>(value));
  }
  return integers;
}

}  // namespace headrace
