// Splits a Jinja template into tokens, with transformers' options: trim_blocks and lstrip_blocks.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/core/error.h"

namespace headrace::jinja {

struct Token {
  enum class Kind : uint8_t {
    kData,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,  // unescaped
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind;
  int32_t line;
  std::string text;
};

// Error kModelFile: "line N: ...".
template <class... Parts>
[[noreturn]] void fail_at(int32_t line, const Parts&... parts) {
  throw Error(ErrorCode::kModelFile, str("line ", line, ": ", parts...));
}

// Returns the tokens of `source`, valid UTF-8, without comments and white space; the last one is kEnd. Error
// kModelFile.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace headrace::jinja
