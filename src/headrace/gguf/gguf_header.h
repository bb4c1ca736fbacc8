// The header of a GGUF file, versions 2 and 3, validated in full. Format: github.com/ggml-org/ggml, docs/gguf.md.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "headrace/gguf/gguf_type.h"

namespace headrace {

// Texts refer to the file's bytes. Integers of all widths are int64_t, except those that only uint64_t holds.
using GgufArray = std::variant<std::vector<int64_t>, std::vector<double>, std::vector<std::string_view>>;
using GgufValue = std::variant<int64_t, uint64_t, double, bool, std::string_view, GgufArray>;

// A tensor as the header declares it.
struct GgufTensor {
  std::string_view name;
  const GgufType* type = nullptr;
  std::vector<uint64_t> dims;     // 1 to 4, the fastest-varying one first; none is 0
  uint64_t begin = 0, bytes = 0;  // in the file; all of it is there
};

class GgufHeader {
 public:
  // `bytes`: the whole file, which outlives this. Error kModelFile: one line with `file`, the key or tensor, and the
  // rule that is broken.
  GgufHeader(std::string file, std::span<const unsigned char> bytes);

  const std::string& file() const { return file_; }
  uint32_t version() const { return version_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the order of their data
  const GgufTensor* find_tensor(std::string_view name) const;          // null: there is none

  // Values of the file by their keys. Absent: the file does not have the key. Error kModelFile: a value of another
  // type. An integer counts as a number, too.
  bool has(std::string_view key) const { return values_.contains(key); }
  const GgufValue* value(std::string_view key) const;  // null: absent
  std::vector<std::string_view> keys() const;          // in ascending order
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  const std::vector<int64_t>* integers(std::string_view key) const;  // null: absent
  const std::vector<double>* numbers(std::string_view key) const;
  const std::vector<std::string_view>* texts(std::string_view key) const;

 private:
  template <class Kind>
  const Kind* find(std::string_view key, std::string_view expected) const;
  template <class Element>
  const std::vector<Element>* find_array(std::string_view key, std::string_view expected) const;

  std::string file_;
  uint32_t version_ = 0;
  std::unordered_map<std::string_view, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_by_name_;
};

}  // namespace headrace
