// Parses Jinja templates.
#pragma once
#include <string_view>

#include "headrace/chat/jinja_ast.h"

namespace headrace::jinja {

inline constexpr size_t kMaxTemplateBytes = 128 << 10;
inline constexpr int32_t kMaxNesting = 100;   // of brackets and blocks
inline constexpr int32_t kMaxOperands = 200;  // one behind another: a + b + c, a|b|c

// Error kModelFile, with the line: not a template, or one beyond these limits.
Template parse(std::string_view source);

// Names that filters and tests have.
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

}  // namespace headrace::jinja
