// The values of a GGUF file that describe a model, by their keys and within bounds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/core/error.h"
#include "headrace/gguf/gguf_header.h"

namespace headrace {

// Keys are named without the architecture that they begin with: "block_count" for "qwen3.block_count". Every error is
// kModelFile and names the file and the key. Refers to the header.
class GgufKeys {
 public:
  GgufKeys(const GgufHeader& header, std::string_view architecture) : header_(header), prefix_(architecture) {
    prefix_ += '.';
  }

  const GgufHeader& header() const { return header_; }
  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  std::vector<std::string> names() const;  // of all keys of the architecture

  bool has(std::string_view name) const { return header_.has(key(name)); }
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most) const;
  int64_t required(std::string_view name, int64_t least, int64_t most) const;
  std::optional<double> number(std::string_view name) const { return header_.number(key(name)); }
  // One number, or one for each of `num_layers` layers, of which those that count are equal. Absent: the file does not
  // have the key.
  std::optional<int64_t> of_layers(std::string_view name, const std::vector<bool>& counts, int64_t num_layers,
                                   int64_t least, int64_t most) const;

  template <class... Parts>
  void require(bool good, std::string_view name, const Parts&... parts) const {
    HR_REQUIRE(good, ErrorCode::kModelFile, header_.file(), ": key '", key(name), "': ", parts...);
  }

 private:
  int64_t checked(std::string_view name, int64_t value, int64_t least, int64_t most) const;

  const GgufHeader& header_;
  std::string prefix_;
};

}  // namespace headrace
