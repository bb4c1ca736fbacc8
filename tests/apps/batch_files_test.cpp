// The files of run-batch: requests, and results of runs that were interrupted anywhere.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "apps/batch_input.h"
#include "apps/partial_results.h"
#include "support/refusal.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

class BatchFiles : public testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  std::string made(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::string content(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Its sentence without the folder.
  std::string refusal(const std::function<void()>& call) const {
    std::string sentence = testing_support::refusal_of(call).sentence;
    const std::string folder = folder_.string() + '/';
    for (size_t at = 0; (at = sentence.find(folder)) != std::string::npos;) sentence.erase(at, folder.size());
    return sentence;
  }

 private:
  fs::path folder_ = fs::temp_directory_path() / ("batch_files_" + std::to_string(getpid()) +
                                                  testing::UnitTest::GetInstance()->current_test_info()->name());
};

using BatchInputFile = BatchFiles;
using PartialResultsFile = BatchFiles;

TEST_F(BatchInputFile, HasLinesAndTheirNumbers) {
  const BatchInput input(made("in", "{\"custom_id\": \"a\"}\n\n  \r\nno json\r\n{\"custom_id\": \"b\"}"));
  ASSERT_EQ(input.size(), 3);
  EXPECT_EQ(input.text(0), "{\"custom_id\": \"a\"}");
  EXPECT_EQ(input.text(1), "no json\r");
  EXPECT_EQ(input.text(2), "{\"custom_id\": \"b\"}");
  EXPECT_EQ(input.number(1), 4);
  EXPECT_EQ(input.number(2), 5);
}

TEST_F(BatchInputFile, MayBeginWithAByteOrderMark) {
  EXPECT_EQ(BatchInput(made("in", "\xef\xbb\xbf{\"custom_id\": \"a\"}\n")).text(0), "{\"custom_id\": \"a\"}");
}

TEST_F(BatchInputFile, HashFollowsTheContent) {
  const uint64_t hash = BatchInput(made("in", "a\nb\n")).hash();
  EXPECT_EQ(BatchInput(made("same", "a\nb\n")).hash(), hash);
  EXPECT_NE(BatchInput(made("other", "a\nc\n")).hash(), hash);
  EXPECT_NE(BatchInput(made("joined", "ab\n")).hash(), hash);
}

TEST_F(BatchInputFile, RefusesFilesInOneSentence) {
  const auto refused = [this](const std::string& file) { return refusal([&] { BatchInput input(path(file)); }); };
  made("empty", "");
  made("blank", "\n \n");
  made("twice", "{\"custom_id\": \"a\"}\n{\"custom_id\": \"b\"}\n\n{\"custom_id\": \"a\"}\n");
  fs::create_directory(path("folder"));
  EXPECT_EQ(refused("missing"), "missing: cannot be read: No such file or directory");
  EXPECT_EQ(refused("folder"), "folder: is no regular file: a run that is interrupted reads its requests again");
  EXPECT_EQ(refused("empty"), "empty: holds no requests, expected one in each line");
  EXPECT_EQ(refused("blank"), "blank: holds no requests, expected one in each line");
  EXPECT_EQ(refused("twice"), "twice: lines 1 and 4 have the custom_id 'a', expected one of its own in each line");
}

const RunSettings kSettings = {{"input file", "12"}, {"--seed", "0"}};

TEST_F(PartialResultsFile, WritesInTheOrderOfTheLines) {
  PartialResults results(path("out.partial"), kSettings, 3);
  results.append(2, 200, "{\"c\": 1}");
  results.append(0, 400, "{\"a\": 1}");
  EXPECT_FALSE(results.complete());
  results.append(1, 200, "{\"b\": 1}");
  EXPECT_TRUE(results.complete());
  EXPECT_EQ(results.num_failed(), 1);
  results.finish(path("out"));
  EXPECT_EQ(content("out"), "{\"a\": 1}\n{\"b\": 1}\n{\"c\": 1}\n");
  EXPECT_FALSE(fs::exists(path("out.partial")));
  EXPECT_FALSE(fs::exists(path("out.tmp")));
}

TEST_F(PartialResultsFile, LeavesNothingIfNothingWasDone) {
  { const PartialResults results(path("out.partial"), kSettings, 3); }
  EXPECT_FALSE(fs::exists(path("out.partial")));
}

// Whatever part of the file a crash has left, what is whole in it counts, and no line is lost or there twice.
TEST_F(PartialResultsFile, GoesOnFromAnyBeginning) {
  const std::string lines[] = {"{\"a\": \"first\"}", "{\"b\": \"second\"}", "{\"c\": \"third\"}"};
  {
    PartialResults results(path("whole"), kSettings, 3);
    for (const int32_t line : {1, 0}) results.append(line, 200, lines[line]);
    results.sync();
  }
  const std::string whole = content("whole");
  const size_t header = whole.find('\n') + 1, second = whole.find('\n', header) + 1;
  for (size_t bytes = header; bytes <= whole.size(); ++bytes) {
    made("out.partial", whole.substr(0, bytes));
    PartialResults results(path("out.partial"), kSettings, 3);
    ASSERT_EQ(results.size(), bytes < second ? 0 : bytes < whole.size() ? 1 : 2) << bytes;
    for (int32_t line = 0; line < 3; ++line) {
      if (!results.has(line)) results.append(line, 200, lines[line]);
    }
    results.finish(path("out"));
    ASSERT_EQ(content("out"), lines[0] + '\n' + lines[1] + '\n' + lines[2] + '\n') << bytes;
  }
}

// A loss of power may leave blocks that were never written.
TEST_F(PartialResultsFile, DropsWhatIsBehindADamagedResult) {
  {
    PartialResults results(path("out.partial"), kSettings, 3);
    for (const int32_t line : {0, 1, 2}) results.append(line, 200, "{\"x\": 0}");
  }
  std::string damaged = content("out.partial");
  const size_t second = damaged.find('\n', damaged.find('\n') + 1) + 1;
  damaged.replace(second + 25, 4, 4, '\0');
  made("out.partial", damaged);
  const PartialResults results(path("out.partial"), kSettings, 3);
  EXPECT_TRUE(results.has(0));
  EXPECT_FALSE(results.has(1) || results.has(2));
  EXPECT_EQ(content("out.partial"), damaged.substr(0, second));
}

TEST_F(PartialResultsFile, RefusesAnotherRun) {
  { PartialResults(path("p"), kSettings, 9).append(7, 200, "{}"); }
  const std::string before = content("p");
  const auto refused = [&](const RunSettings& settings, int32_t lines) {
    return refusal([&] { PartialResults results(path("p"), settings, lines); });
  };
  EXPECT_EQ(refused({{"input file", "12"}, {"--seed", "1"}}, 9),
            "p: is of an interrupted run with --seed 0, this one has 1; repeat its command to go on, or remove "
            "the file to begin again");
  EXPECT_EQ(refused({{"input file", "12"}, {"--seed", "0"}, {"--dtype", "x"}}, 9),
            "p: is of an interrupted run with --dtype none, this one has x; repeat its command to go on, or remove the "
            "file to begin again");
  EXPECT_EQ(refused({{"input file", "3"}, {"--seed", "0"}}, 2),
            "p: is of an interrupted run with another input file; repeat its command to go on, or remove the file to "
            "begin again");
  EXPECT_EQ(content("p"), before) << "a refused run changes nothing";
}

TEST_F(PartialResultsFile, OfARunWithoutResultsMayBeAnybodys) {
  { PartialResults(path("p"), kSettings, 9).append(7, 200, "{}"); }
  const std::string whole = content("p");
  made("p", whole.substr(0, whole.find('\n') + 1));
  const PartialResults results(path("p"), {{"input file", "3"}}, 2);
  EXPECT_EQ(results.size(), 0);
}

TEST_F(PartialResultsFile, RefusesFilesOfOthers) {
  const std::string text = made("p", "my notes\nof today\n");
  EXPECT_EQ(refusal([&] { PartialResults results(text, kSettings, 1); }),
            "p: is no file of an interrupted run-batch, expected one or none");
  EXPECT_EQ(content("p"), "my notes\nof today\n");
}

TEST_F(PartialResultsFile, IsOfOneRunAtATime) {
  const PartialResults results(path("p"), kSettings, 1);
  EXPECT_EQ(refusal([&] { PartialResults other(path("p"), kSettings, 1); }), "p: another run-batch writes to it");
}

}  // namespace
}  // namespace headrace::app
