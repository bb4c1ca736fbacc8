// Paths of the repository's files, for tests.
#pragma once
#include <filesystem>
#include <string>

namespace headrace::testing_support {

// The folder that the build was made from, or what the environment variable HEADRACE_SOURCE_DIR says: a build that was
// carried to another machine finds the files where they lie there.
std::filesystem::path source_tree();

// tests/golden/`name` of it. Of a golden checkpoint, which has weights.txt: a copy of that folder with the
// model.safetensors that weights.txt describes, made once by each process and removed when it exits. Threads may call
// it. Throws Error(kModelFile) where the weights that are made are not those that tools/golden/formula.py made.
std::filesystem::path golden_folder(const std::string& name);

}  // namespace headrace::testing_support
