// JSON files of a model directory (config.json and its kin) as plain values. The parser stays out of this header.
#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/core/error.h"

namespace headrace {

// One JSON value; a tree that owns everything in it. Every failure is Error(kModelFile) that names the file and
// the key, as in "config.json: text_config.hidden_size is a string, expected an integer". Immutable: threads may share.
class JsonValue {
 public:
  enum class Kind : uint8_t {
    kNull,
    kBool,
    kInt,
    kFloat,
    kBeyond,  // a number that neither of these holds: 10^30, 2^64, Infinity, NaN
    kString,
    kArray,
    kObject
  };
  using Member = std::pair<std::string, JsonValue>;
  static constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

  // `file` stands in errors. What Python's json module writes is read, as it reads it: of a key that stands twice in an
  // object the last value counts, and numbers may be any. Refused: what is not UTF-8, otherwise not JSON, or has more
  // than 64 levels.
  static JsonValue parse(std::string_view text, std::string_view file);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_int() const { return kind_ == Kind::kInt; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  const std::string& where() const { return where_; }  // "config.json: text_config.hidden_size"

  // The value as one type; Error when it has another, or lies outside [min, max].
  bool as_bool() const;
  int64_t as_int(int64_t min = 0, int64_t max = kMaxInt) const;
  double as_float() const;  // an integer of any size counts; always finite
  const std::string& as_string() const;
  const std::vector<JsonValue>& as_array() const;
  const std::vector<Member>& as_object() const;  // in the file's order
  std::vector<int64_t> as_ints(int64_t min = 0, int64_t max = kMaxInt) const;
  std::vector<std::string> as_strings() const;

  // A member of an object (Error on any other kind). find: null when it is absent or JSON null; at: Error then.
  const JsonValue* find(std::string_view key) const;
  const JsonValue& at(std::string_view key) const;

  // Members with a default for an absent or null one; the type and the range are checked when it is there.
  int64_t int_or(std::string_view key, int64_t fallback, int64_t min = 0, int64_t max = kMaxInt) const;
  double float_or(std::string_view key, double fallback) const;
  bool bool_or(std::string_view key, bool fallback) const;
  std::string string_or(std::string_view key, std::string_view fallback) const;

 private:
  friend struct JsonBuilder;
  void require(Kind kind) const;

  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  int64_t int_ = 0;
  double float_ = 0;
  std::string string_, where_;  // string_: of kBeyond, the number's characters
  std::vector<JsonValue> items_;
  std::vector<Member> members_;
};

// Reads and parses `path`, which stands in errors. Error kModelFile when it is missing, no regular file,
// above 64 MiB, unreadable, or not as JsonValue::parse wants it.
JsonValue read_json_file(const std::filesystem::path& path);

}  // namespace headrace
