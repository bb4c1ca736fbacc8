// Values of a tokenizer's JSON files, read with their places. Included by the readers of those files alone.
#pragma once
#include <simdjson.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/core/python_json.h"
#include "headrace/text/added_tokens.h"

namespace headrace::json {

namespace dom = simdjson::dom;
using Keys = std::initializer_list<std::string_view>;

// A value and its place in the file, for messages.
struct Node {
  dom::element value;
  std::string where;
};

template <class T>
T get(const Node& node, std::string_view expected) {
  T value;
  HR_REQUIRE(node.value.get(value) == simdjson::SUCCESS, ErrorCode::kModelFile, node.where, " is not ", expected);
  return value;
}

inline std::string string_of(const Node& node) {
  const auto text = get<std::string_view>(node, "a string");
  HR_REQUIRE(!marked_number(text), ErrorCode::kModelFile, node.where, " is not a string");
  return std::string(text);
}
inline bool flag_of(const Node& node) { return get<bool>(node, "true or false"); }

inline int32_t id_of(const Node& node) {
  const auto value = get<int64_t>(node, "an integer");
  HR_REQUIRE(value >= 0 && value <= std::numeric_limits<int32_t>::max(), ErrorCode::kModelFile, node.where, " is ",
             value, ", expected an id from 0 to 2^31 - 1");
  return static_cast<int32_t>(value);
}

inline std::vector<Node> items_of(const Node& node) {
  std::vector<Node> items;
  for (const dom::element value : get<dom::array>(node, "an array"))
    items.push_back({value, str(node.where, "[", items.size(), "]")});
  return items;
}

// The member `key`, the last one of several; nullopt if it is absent or null.
inline std::optional<Node> find(const Node& node, std::string_view key) {
  std::optional<dom::element> found;
  for (const auto& [name, value] : get<dom::object>(node, "an object"))
    if (name == key) found = value;
  if (!found || found->is_null()) return std::nullopt;
  return Node{*found, str(node.where, node.where.empty() ? "" : ".", printable(key))};
}

inline Node member(const Node& node, std::string_view key) {
  std::optional<Node> found = find(node, key);
  HR_REQUIRE(found, ErrorCode::kModelFile, node.where.empty() ? "the file" : node.where, " has no '", printable(key),
             "'");
  return *std::move(found);
}

inline std::string type_of(const Node& node) { return string_of(member(node, "type")); }

[[noreturn]] inline void refuse(const Node& node, std::string_view found, std::string_view built) {
  throw Error(ErrorCode::kUnsupported,
              str(node.where, " is '", printable(found), "', which is not supported; built is ", built));
}

// A member that nobody reads would be a setting ignored in silence.
inline void allow_only(const Node& node, Keys keys) {
  for (const auto& [key, value] : get<dom::object>(node, "an object"))
    HR_REQUIRE(std::find(keys.begin(), keys.end(), key) != keys.end(), ErrorCode::kUnsupported,
               node.where.empty() ? "the file" : node.where, " has '", printable(key), "', which is not supported");
}

// Members that select what is not built unless they are absent, null, or as good as null.
inline void require_unset(const Node& node, Keys keys) {
  for (const std::string_view key : keys) {
    const std::optional<Node> set = find(node, key);
    if (!set) continue;
    std::string_view text;
    bool flag = true;
    double number = 1;
    const bool neutral = (set->value.get(text) == simdjson::SUCCESS && text.empty()) ||
                         (set->value.get(flag) == simdjson::SUCCESS && !flag) ||
                         (set->value.get(number) == simdjson::SUCCESS && number == 0);
    HR_REQUIRE(neutral, ErrorCode::kUnsupported, set->where, " is set, which is not supported");
  }
}

inline bool flag_or(const Node& node, std::string_view key, bool otherwise) {
  const std::optional<Node> found = find(node, key);
  return found ? flag_of(*found) : otherwise;
}

// A token of a vocabulary to its id.
inline std::vector<std::pair<std::string, int32_t>> ids_by_token(const Node& node) {
  std::vector<std::pair<std::string, int32_t>> entries;
  for (const auto& [token, value] : get<dom::object>(node, "an object")) {
    int64_t id = -1;
    const bool good = value.get(id) == simdjson::SUCCESS && id >= 0 && id <= std::numeric_limits<int32_t>::max();
    HR_REQUIRE(good, ErrorCode::kModelFile, node.where, "['", printable(token), "'] is no id");
    HR_REQUIRE(!token.empty(), ErrorCode::kModelFile, node.where, " has an empty token");
    entries.emplace_back(std::string(token), static_cast<int32_t>(id));
  }
  return entries;
}

// The flags and the content of an added token; both formats of files spell them alike.
inline AddedToken added_token_of(const Node& item, int32_t id) {
  AddedToken token{.id = id,
                   .content = string_of(member(item, "content")),
                   .special = flag_of(member(item, "special")),
                   .normalized = flag_of(member(item, "normalized")),
                   .single_word = flag_of(member(item, "single_word")),
                   .lstrip = flag_of(member(item, "lstrip")),
                   .rstrip = flag_of(member(item, "rstrip"))};
  HR_REQUIRE(!token.content.empty(), ErrorCode::kModelFile, item.where, ".content is empty");
  return token;
}

// The top of a file. `parser` owns what the result refers to. Error kModelFile unless it is a JSON object.
inline Node parse_object(dom::parser& parser, std::string_view text, std::string_view name = "the file") {
  Node root;
  const simdjson::padded_string padded(text);
  simdjson::error_code error = parser.parse(padded).get(root.value);
  if (error != simdjson::SUCCESS) {
    if (const auto marked = with_marked_numbers(text))
      error = parser.parse(simdjson::padded_string(*marked)).get(root.value);
  }
  HR_REQUIRE(error == simdjson::SUCCESS, ErrorCode::kModelFile, name, " is no JSON: ", simdjson::error_message(error));
  HR_REQUIRE(root.value.is_object(), ErrorCode::kModelFile, name, " is not a JSON object");
  return root;
}

}  // namespace headrace::json
