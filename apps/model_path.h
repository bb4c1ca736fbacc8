// Where a model is.
#pragma once
#include <filesystem>
#include <string>

namespace headrace::app {

// `given`, or what Hugging Face's cache holds under that name; without one the demo of that name:
// ../share/headrace/demo_models beside the program, else the source tree's. Error kModelFile when there is nothing of
// that name.
std::filesystem::path model_directory(const std::string& given, const std::string& demo = "fairy-hybrid");

}  // namespace headrace::app
