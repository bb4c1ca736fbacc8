// The keys that clients show.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Const methods are thread-safe.
class ApiKeys {
 public:
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool empty() const { return keys_.empty(); }
  size_t size() const { return keys_.size(); }
  // Returns the index of the key in "Bearer KEY"; nothing if it is none of them. The time depends on what the client
  // sent alone, not on how much of it is right.
  std::optional<size_t> find(std::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace headrace
