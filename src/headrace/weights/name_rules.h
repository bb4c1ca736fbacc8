// Other names for the same tensors: families that share a graph and not its spelling.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace headrace {

// In a name that a layer asks for, the first `common` becomes `stored`.
struct NameRule {
  std::string_view common, stored;
};

// The stored name of a tensor: every rule in order, each on the result of those before it.
inline std::string stored_name(std::span<const NameRule> rules, std::string_view asked) {
  std::string name(asked);
  for (const NameRule& rule : rules) {
    if (const size_t at = name.find(rule.common); at != std::string::npos) {
      name.replace(at, rule.common.size(), rule.stored);
    }
  }
  return name;
}

}  // namespace headrace
