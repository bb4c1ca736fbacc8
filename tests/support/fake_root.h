// A "/" of its own, with what a test writes into it.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace headrace::testing_support {

class FakeRoot : public testing::Test {
 protected:
  FakeRoot() { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  // Named after the running test: CTest runs several at once.
  const std::filesystem::path root_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("headrace_root_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

}  // namespace headrace::testing_support
