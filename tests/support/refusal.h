// The error that refuses a call.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "headrace/core/error.h"

namespace headrace::testing_support {

struct Refusal {
  std::optional<ErrorCode> code;  // none where nothing was thrown
  std::string sentence;
};

// Other exceptions than Error pass.
inline Refusal refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

}  // namespace headrace::testing_support
