// The JSON of a client's request, read strictly. Included by the readers of requests alone: simdjson's types depend on
// how a target is compiled.
#pragma once
#include <simdjson.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/serve/request_error.h"

namespace headrace {

// A value and its name in messages: "max_tokens", "prompt[3]". Refers to its JsonBody.
// All readers throw RequestError 400, "<name> is <found>, expected <expected>".
class JsonNode {
 public:
  JsonNode(simdjson::dom::element value, std::string name, bool has_marks)
      : value_(value), name_(std::move(name)), has_marks_(has_marks) {}

  const std::string& name() const { return name_; }
  JsonNode named(std::string name) const { return {value_, std::move(name), has_marks_}; }  // the same value
  bool is_null() const { return value_.is_null(); }
  bool is_false() const { return value_.is_bool() && !bool(value_); }
  bool is_bool() const { return value_.is_bool(); }
  bool is_integer() const { return value_.is_int64(); }
  bool is_string() const { return value_.is_string() && number_mark().empty(); }
  bool is_array() const { return value_.is_array(); }
  bool is_object() const { return value_.is_object(); }

  bool flag() const;
  int64_t integer(int64_t least, int64_t most) const;
  double number(double least, double most) const;  // an integer counts
  std::string text() const;
  std::vector<JsonNode> items(size_t most) const;  // the first ones of an array
  // The members of an object, in its order; refuses a name that occurs twice. Each is named `prefix` and its name.
  std::vector<JsonNode> members(std::string_view prefix = "") const;
  size_t num_members() const;  // of an object, at most 16 million
  // integer() of all items of an array, without a node for each.
  std::vector<int32_t> integers(int32_t least, int32_t most) const;

  [[noreturn]] void refuse(std::string_view expected) const;

 private:
  std::string_view number_mark() const;  // a number beyond JSON or 64 bits (python_json.h); empty for other values
  std::string found() const;

  simdjson::dom::element value_;
  std::string name_;
  bool has_marks_;
};

class JsonBody {
 public:
  static constexpr size_t kMaxDepth = 64;

  // Reads one JSON object and nothing behind it. `what`: "the body". Lone surrogates in strings become U+FFFD. Throws
  // RequestError 400 for anything else, invalid UTF-8 and deeper nesting included.
  JsonBody(std::string_view text, std::string_view what);

  JsonNode root() const { return {root_, what_, has_marks_}; }

 private:
  std::string what_;
  std::unique_ptr<simdjson::dom::parser> parser_;  // owns what nodes refer to; does not move
  simdjson::dom::element root_;
  bool has_marks_ = false;
};

}  // namespace headrace
