#include <array>
#include <string>

#include "headrace/base/error.h"
#include "headrace/strategy/autoregressive.h"

namespace headrace {
namespace {

struct Row {
  std::string_view name;
  std::unique_ptr<DecodingStrategy> (*make)();
};

// A new strategy is one file and one row.
constexpr std::array kStrategies = {
    Row{"autoregressive", []() -> std::unique_ptr<DecodingStrategy> { return std::make_unique<Autoregressive>(); }},
};

}  // namespace

std::vector<std::string_view> strategy_names() {
  std::vector<std::string_view> names;
  for (const Row& row : kStrategies) names.push_back(row.name);
  return names;
}

std::unique_ptr<DecodingStrategy> make_strategy(std::string_view name) {
  std::string built;
  for (const Row& row : kStrategies) {
    if (row.name == name) return row.make();
    built += (built.empty() ? "" : ", ") + std::string(row.name);
  }
  throw Error(ErrorCode::kUnsupported, str("strategy '", name, "' is not built; built are: ", built));
}

}  // namespace headrace
