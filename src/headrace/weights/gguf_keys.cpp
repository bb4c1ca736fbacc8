#include "headrace/weights/gguf_keys.h"

#include <utility>
#include <variant>

namespace headrace {

std::vector<std::string> GgufKeys::names() const {
  std::vector<std::string> names;
  for (const std::string_view key : header_.keys())
    if (key.starts_with(prefix_)) names.emplace_back(key.substr(prefix_.size()));
  return names;
}

int64_t GgufKeys::checked(std::string_view name, int64_t value, int64_t least, int64_t most) const {
  require(value >= least && value <= most, name, "is ", value, ", expected ", least, " to ", most);
  return value;
}

std::optional<int64_t> GgufKeys::integer(std::string_view name, int64_t least, int64_t most) const {
  const auto value = header_.integer(key(name));
  return value ? std::optional(checked(name, *value, least, most)) : std::nullopt;
}

int64_t GgufKeys::required(std::string_view name, int64_t least, int64_t most) const {
  const auto value = integer(name, least, most);
  HR_REQUIRE(value, ErrorCode::kModelFile, header_.file(), ": has no key '", key(name), "'");
  return *value;
}

std::optional<int64_t> GgufKeys::of_layers(std::string_view name, const std::vector<bool>& counts, int64_t num_layers,
                                           int64_t least, int64_t most) const {
  const GgufValue* const value = header_.value(key(name));
  if (value == nullptr || !std::holds_alternative<GgufArray>(*value)) return integer(name, least, most);
  const std::vector<int64_t>& values = *header_.integers(key(name));
  require(std::cmp_equal(values.size(), num_layers), name, "has ", values.size(), " entries, expected one for each of ",
          num_layers, " layers");
  std::optional<int64_t> common;
  for (size_t layer = 0; layer < counts.size(); ++layer) {
    if (!counts[layer]) continue;
    const int64_t own = checked(name, values[layer], least, most);
    require(common.value_or(own) == own, name, "is ", own, " in layer ", layer, " and ", common.value_or(own),
            " in layers before it; built are models with one number for all");
    common = own;
  }
  return common;
}

}  // namespace headrace
