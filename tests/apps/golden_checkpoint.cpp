// golden_checkpoint FAMILY FOLDER: copies the files of a golden checkpoint, and its weights, for tests that are no C++.
#include <exception>
#include <filesystem>
#include <iostream>

#include "support/source_tree.h"

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: golden_checkpoint FAMILY FOLDER\n";
    return 2;
  }
  std::filesystem::copy(headrace::testing_support::golden_folder(argv[1]), argv[2]);
} catch (const std::exception& error) {
  std::cerr << "golden_checkpoint: " << error.what() << '\n';
  return 1;
}
