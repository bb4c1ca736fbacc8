// Serves directories as a hub's repositories until standard input ends. The first line of standard output is its
// address. Usage: small_hub [--bytes-per-s N] [--gated NAME=TOKEN] NAME=DIRECTORY...
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "hub/small_hub.h"

namespace {

namespace fs = std::filesystem;
using headrace::testing_support::SmallHub;

SmallHub::Files files_of(const fs::path& directory) {
  SmallHub::Files files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[fs::relative(entry.path(), directory).string()] = {.content = {std::istreambuf_iterator<char>(in), {}},
                                                             .lfs = entry.path().extension() == ".safetensors"};
  }
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  SmallHub hub;
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (size_t i = 0; i < words.size(); ++i) {
    const bool rate = words[i] == "--bytes-per-s", gated = words[i] == "--gated";
    if (rate || gated) ++i;
    const size_t equals = words[i].find('=');
    if (rate) {
      hub.set_bytes_per_s(std::stoul(words[i]));
    } else if (gated) {
      hub.set_gated(words[i].substr(0, equals), words[i].substr(equals + 1));
    } else {
      hub.set_repository(words[i].substr(0, equals), files_of(words[i].substr(equals + 1)));
    }
  }
  std::cout << hub.endpoint() << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
  }
}
