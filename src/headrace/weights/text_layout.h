// The prefixes under which checkpoints store a text model.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

struct TextLayout {
  std::string_view body;  // of embed_tokens, layers.N and norm
  std::string_view head;  // of lm_head
};

// A text model alone, transformers 5's wrapper of several modalities, and that of transformers 4.
inline constexpr std::array<TextLayout, 3> kTextLayouts = {{
    {"model.", ""},
    {"model.language_model.", ""},
    {"language_model.model.", "language_model."},
}};

// The name under `to` of a tensor or module that `from` calls `name`. Absent where `name` is not under `from`.
inline std::optional<std::string> moved_name(std::string_view name, const TextLayout& from, const TextLayout& to) {
  constexpr std::string_view kHead = "lm_head";
  if (name.starts_with(from.body)) return std::string(to.body) + std::string(name.substr(from.body.size()));
  if (!name.starts_with(from.head) || !name.substr(from.head.size()).starts_with(kHead)) return std::nullopt;
  return std::string(to.head) + std::string(name.substr(from.head.size()));
}

}  // namespace headrace
