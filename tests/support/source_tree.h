// Where the tests find the repository's files.
#pragma once
#include <filesystem>
#include <string>

namespace headrace::testing_support {

// The folder that the build was made from, or what the environment variable HEADRACE_SOURCE_DIR says: a build that was
// carried to another machine finds the files where they lie there.
std::filesystem::path source_tree();

// tests/golden/`name` of it.
std::filesystem::path golden_folder(const std::string& name);

}  // namespace headrace::testing_support
