// Counts how often the program opens the files that describe a model.
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "headrace/core/error.h"
#include "support/safetensors_writer.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

// Counts the opens of one file from here on.
class OpenCounter {
 public:
  explicit OpenCounter(const std::filesystem::path& file) : descriptor_(inotify_init1(IN_NONBLOCK)) {
    // The kernel merges equal events that follow each other: closing parts two opens.
    watches_ = inotify_add_watch(descriptor_, file.c_str(), IN_OPEN | IN_CLOSE) >= 0;
  }
  OpenCounter(const OpenCounter&) = delete;
  OpenCounter& operator=(const OpenCounter&) = delete;
  ~OpenCounter() { close(descriptor_); }

  bool watches() const { return watches_; }
  int count() const {
    int opens = 0;
    inotify_event event{};  // without a name: it concerns the watched file itself
    while (read(descriptor_, &event, sizeof(event)) == sizeof(event)) opens += (event.mask & IN_OPEN) != 0 ? 1 : 0;
    return opens;
  }

 private:
  int descriptor_;
  bool watches_ = false;
};

TEST(ConfigReads, EachCommandOpensEachFileOnce) {
  const test::TempDir work;
  const std::filesystem::path model = work / "model";
  std::filesystem::copy(testing_support::source_tree() / "demo_models" / "fairy-hybrid", model);
  test::write_file(work / "text", "Once upon a time there was a king");
  const std::string name = model.string();
  for (const std::string& words :
       {str("generate ", name, " Once -n 1 -t 1"), str("generate ", name, " Once -n 1 -t 1 --random-weights 1"),
        str("eval perplexity -m ", name, " -t 1 --file ", (work / "text").string()), str("doctor ", name)}) {
    const OpenCounter config(model / "config.json"), generation(model / "generation_config.json");
    if (!config.watches()) GTEST_SKIP() << "this system has no inotify";
    ASSERT_EQ(std::system(str(HEADRACE_PROGRAM " ", words, " >/dev/null").c_str()), 0) << words;
    EXPECT_EQ(config.count(), 1) << words;
    EXPECT_EQ(generation.count(), 1) << words;
  }
}

}  // namespace
}  // namespace headrace
