#pragma once
#include <filesystem>

#include "headrace/core/error.h"

namespace headrace {

// Returns run(). Adds the model's path to errors about its files, which the engine does not know.
template <class Run>
auto naming(const std::filesystem::path& model, const Run& run) {
  try {
    return run();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kModelFile) throw;
    throw Error(e.code(), str(model.string(), ": ", e.what()));
  }
}

}  // namespace headrace
