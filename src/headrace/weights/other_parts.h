// Tensors that a checkpoint stores and no text model reads.
#pragma once
#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace headrace {

// Prefixes of a vision tower and of heads that predict several tokens.
inline constexpr std::array<std::string_view, 3> kOtherParts = {"model.visual.", "visual.", "mtp."};

// True for a tensor under one of `prefixes` and for a rotary frequency table.
inline bool is_of_other_part(std::string_view name, std::span<const std::string_view> prefixes = kOtherParts) {
  return name.ends_with("rotary_emb.inv_freq") ||
         std::ranges::any_of(prefixes, [name](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace headrace
