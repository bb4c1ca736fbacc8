// The chat without a model: commands, messages, settings, a conversation's file, the lines that were typed.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/answer_view.h"
#include "apps/chat_command.h"
#include "apps/chat_settings.h"
#include "apps/conversation.h"
#include "apps/line_history.h"
#include "apps/sampling_flags.h"
#include "headrace/core/error.h"
#include "support/refusal.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;
using testing_support::refusal_of;

// An empty directory that lives as long as the object.
class Folder {
 public:
  Folder() {
    std::string pattern = fs::temp_directory_path() / "headrace_chat_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ / name; }
  std::string file(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }

 private:
  fs::path path_;
};

std::string content_of(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

TEST(ChatCommand, KnowsItsWordsAndThoseOfOthers) {
  using Kind = ChatCommand::Kind;
  const std::vector<std::pair<std::string, Kind>> cases = {{"/clear", Kind::kClear},
                                                           {"/system Be brief.", Kind::kSystem},
                                                           {"/save a b.json", Kind::kSave},
                                                           {"/load x", Kind::kLoad},
                                                           {"/set temperature 0", Kind::kSet},
                                                           {"/stats", Kind::kStats},
                                                           {"/help", Kind::kHelp},
                                                           {"/?", Kind::kHelp},
                                                           {"/exit", Kind::kExit},
                                                           {"/bye", Kind::kExit},
                                                           {"/quit  ", Kind::kExit},
                                                           {"/regen", Kind::kUnknown}};
  for (const auto& [line, kind] : cases) {
    const auto command = chat_command(line);
    ASSERT_TRUE(command) << line;
    EXPECT_EQ(command->kind, kind) << line;
  }
  EXPECT_EQ(chat_command("/system \t Be  brief. ")->rest, "Be  brief.");
  EXPECT_EQ(chat_command("/clear")->rest, "");
}

TEST(ChatCommand, OtherLinesAreMessages) {
  for (const char* line : {"", "hello", " /exit", "/usr/bin", "/", "//exit", "/1", "/exit."}) {
    EXPECT_FALSE(chat_command(line)) << line;
  }
}

TEST(ChatCommand, AnUnknownOneIsAnsweredWithTheNearest) {
  EXPECT_EQ(unknown_command(*chat_command("/ststs")),
            "there is no command /ststs, did you mean /stats?; /help lists them, and a message may begin with a space");
  EXPECT_EQ(unknown_command(*chat_command("/regenerate it")),
            "there is no command /regenerate; /help lists them, and a message may begin with a space");
}

// The messages that these lines make, and what stays open.
std::string joined(const std::vector<std::string>& lines) {
  MessageLines open;
  std::string all;
  for (const std::string& line : lines) {
    if (const auto message = open.add(line)) all += "[" + *message + "]";
  }
  return all + (open.is_open() ? "(" + open.take() + ")" : "");
}

TEST(MessageLines, OneLineIsAMessageUnlessItGoesOn) {
  EXPECT_EQ(joined({"one", "", "two"}), "[one][][two]");
  EXPECT_EQ(joined({"one\\", "two\\", "three", "four"}), "[one\ntwo\nthree][four]");
  EXPECT_EQ(joined({"one\\", "\"\"\"two"}), "[one\n\"\"\"two]");
  EXPECT_EQ(joined({"one\\"}), "(one\n)");
}

TEST(MessageLines, QuotesHoldLinesTogether) {
  EXPECT_EQ(joined({"\"\"\"", "one", "", "two\\", "\"\"\"", "three"}), "[one\n\ntwo\\][three]");
  EXPECT_EQ(joined({"\"\"\"one", "two\"\"\" "}), "[one\ntwo]");
  EXPECT_EQ(joined({"\"\"\"one\"\"\""}), "[one]");
  EXPECT_EQ(joined({"\"\"\"\"\"\""}), "[]");
  EXPECT_EQ(joined({"\"\"\"one", "two"}), "(one\ntwo\n)");
  EXPECT_EQ(joined({"say \"\"\"", "x"}), "[say \"\"\"][x]");
}

TEST(ChatSettings, AreSetByName) {
  ChatSettings s;
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{{"temperature", "0.7"},
                                                                                    {"top-k", "40"},
                                                                                    {"seed", "18446744073709551615"},
                                                                                    {"max_tokens", "12"},
                                                                                    {"stop", "\\nEnd"},
                                                                                    {"thinking", "show"},
                                                                                    {"enable_thinking", "false"}}) {
    set(s, name, value);
  }
  EXPECT_EQ(s.sampling.temperature, 0.7f);
  EXPECT_EQ(s.sampling.top_k, 40);
  EXPECT_EQ(s.sampling.params.seed, 18446744073709551615u);
  EXPECT_EQ(s.sampling.params.max_tokens, 12);
  EXPECT_EQ(s.sampling.params.stop, std::vector<std::string>{"\nEnd"});
  EXPECT_TRUE(s.shows_thinking);
  EXPECT_EQ(s.enable_thinking, false);
  set(s, "max_tokens", "-1");
  set(s, "seed", "-1");
  set(s, "temperature", "default");
  set(s, "stop", "default");
  EXPECT_EQ(s.sampling.params.max_tokens, kUntilFull);
  EXPECT_EQ(s.sampling.params.seed, std::nullopt);
  EXPECT_EQ(s.sampling.temperature, std::nullopt);
  EXPECT_TRUE(s.sampling.params.stop.empty());
}

TEST(ChatSettings, RefuseWhatIsNoValueAndStayAsTheyAre) {
  ChatSettings s;
  set(s, "temperature", "0.5");
  const auto refused = [&s](const char* name, const char* value) {
    return refusal_of([&] { set(s, name, value); }).sentence;
  };
  EXPECT_EQ(refused("temperature", "hot"), "temperature is 'hot', expected a number");
  EXPECT_EQ(refused("temperature", ""), "temperature is '', expected a number");
  EXPECT_EQ(refused("temperature", "101"), "temperature is 101, expected 0 to 100");
  EXPECT_EQ(refused("top_k", "1.5"), "top_k is '1.5', expected an integer");
  EXPECT_EQ(refused("max_tokens", "0"), "max_tokens is 0, expected 1 to 1073741824");
  EXPECT_EQ(refused("seed", "-2"), "seed is '-2', expected an integer, or -1: another one for each answer");
  EXPECT_EQ(refused("thinking", "maybe"), "thinking is 'maybe', expected show or hide");
  EXPECT_EQ(refused("stop", ""), "stop: a stop text is empty");
  EXPECT_EQ(refused("heat", "1"),
            "there is no setting 'heat', expected one of: temperature, top_k, top_p, min_p, repetition_penalty, "
            "presence_penalty, frequency_penalty, seed, max_tokens, stop, thinking, enable_thinking");
  EXPECT_EQ(s.sampling.temperature, 0.5f);
}

TEST(ChatSettings, DefaultIsTheModels) {
  ChatSettings s{.default_max_tokens = 160};
  EXPECT_EQ(chosen(s).size(), 1u) << "-1 was chosen";
  set(s, "max_tokens", "default");
  EXPECT_EQ(s.sampling.params.max_tokens, 160);
  EXPECT_TRUE(chosen(s).empty());
  set(s, "max_tokens", "5"), set(s, "temperature", "0.5");
  set_all(s, JsonValue::parse(R"({"top_p": 0.5})", "f"));
  EXPECT_EQ(chosen(s), (std::vector<std::pair<std::string, std::string>>{{"top_p", "0.5"}}));
}

TEST(ChatSettings, TextShowsTheModelsDefaultsWhereNothingIsChosen) {
  ChatSettings s;
  set(s, "top_p", "0.5");
  const std::string text = settings_text(s, {.temperature = 0.8f, .top_p = 0.9f});
  EXPECT_NE(text.find("temperature         0.8 "), std::string::npos) << text;
  EXPECT_NE(text.find("top_p               0.5 "), std::string::npos) << text;
  EXPECT_NE(text.find("max_tokens          -1 "), std::string::npos) << text;
  EXPECT_NE(text.find("seed                default "), std::string::npos) << text;
}

TEST(ThinkingLine, ShowsTheLastWordsThatFit) {
  std::setlocale(LC_CTYPE, "C.UTF-8");
  EXPECT_EQ(thinking_line(3.21, "", 80), "thinking... 3.2 s");
  EXPECT_EQ(thinking_line(0, "First,\n\n  the user\tasks ", 80), "thinking... 0.0 s  First, the user asks ");
  const std::string long_thought = "one two three four five six seven eight nine ten";
  for (int columns = 20; columns < 80; ++columns) {
    const std::string line = thinking_line(3.21, long_thought, columns);
    EXPECT_LT(line.size(), static_cast<size_t>(columns));
    const std::string words = line.substr(std::min<size_t>(19, line.size()));
    EXPECT_TRUE(long_thought.ends_with(words)) << line;
    EXPECT_TRUE(words.empty() || words == long_thought || long_thought.ends_with(" " + words)) << line;
  }
  EXPECT_EQ(thinking_line(3.21, long_thought, 40), "thinking... 3.2 s  seven eight nine ten");
}

TEST(ThinkingLine, CountsCellsAndShowsControlCharactersAsCodes) {
  std::setlocale(LC_CTYPE, "C.UTF-8");
  EXPECT_EQ(thinking_line(1, "日本 語日 本語", 30), "thinking... 1.0 s  語日 本語");
  EXPECT_EQ(thinking_line(1, "a\x1b[2Jb", 80), "thinking... 1.0 s  a\\x1b[2Jb");
  EXPECT_EQ(thinking_line(1, std::string(100, 'x'), 40), "thinking... 1.0 s");
}

TEST(Conversation, IsReadAsItWasWritten) {
  const Folder folder;
  ChatSettings s;
  set(s, "temperature", "0.7");
  set(s, "seed", "18446744073709551615");
  set(s, "enable_thinking", "true");
  s.sampling.params.stop = {"a\n", "\"b\""};
  const Conversation written{.model = "a/\"b\"",
                             .messages = {{.role = "system", .content = "Be brief."},
                                          {.role = "user", .content = "line\n\ttwo \"\\ é\x1b"},
                                          {.role = "assistant", .content = "", .reasoning = "hm\n"}}};
  write_conversation(folder.file("c.json"), written, s);
  ChatSettings again;
  const Conversation read = read_conversation(folder.file("c.json"), again);
  EXPECT_EQ(conversation_json(read, again), conversation_json(written, s));
  EXPECT_EQ(read.model, written.model);
  ASSERT_EQ(read.messages.size(), 3u);
  EXPECT_EQ(read.messages[1].content, written.messages[1].content);
  EXPECT_EQ(read.messages[2].reasoning, "hm\n");
  EXPECT_EQ(chosen(again), chosen(s));
  EXPECT_EQ(again.sampling.params.seed, s.sampling.params.seed);
  EXPECT_EQ(again.sampling.params.stop, s.sampling.params.stop);
}

TEST(Conversation, AFileThatIsNoneIsRefusedInASentence) {
  const Folder folder;
  const auto refused = [&folder](std::string_view text) {
    const std::string file = folder.file("c.json", text);
    std::string sentence = refusal_of([&] {
                             ChatSettings s;
                             read_conversation(file, s);
                           }).sentence;
    return sentence.starts_with(file + ": ") ? sentence.substr(file.size() + 2) : sentence;
  };
  EXPECT_EQ(refused("{}"), "the top level has no 'messages'");
  EXPECT_EQ(refused("[]"), "the top level is an array, expected an object");
  EXPECT_TRUE(refused("hello").starts_with("not valid JSON"));
  EXPECT_TRUE(refused("").starts_with("not valid JSON"));
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": ["x"]}]})"),
            "messages[0].content is an array, expected a string");
  EXPECT_EQ(refused(R"({"messages": [{"content": "x"}]})"), "messages[0] has no 'role'");
  EXPECT_EQ(refused(R"({"messages": [{"role": "tool", "content": "x"}]})"),
            "messages[0].role is 'tool', expected system, user or assistant");
  EXPECT_EQ(refused(R"({"messages": [], "params": {"temperature": 1000}})"), "temperature is 1000, expected 0 to 100");
  EXPECT_TRUE(refused(R"({"messages": [], "params": {"heat": 1}})").starts_with("there is no setting 'heat'"));
  ChatSettings untouched;
  EXPECT_EQ(refusal_of([&] { read_conversation(folder.file("none.json"), untouched); }).sentence,
            folder.file("none.json") + ": cannot be read: No such file or directory");
}

TEST(Conversation, TakesThePlaceOfAnotherOneButOfNoOtherFile) {
  const Folder folder;
  const std::string other = folder.file("notes.txt", "dear diary"), file = folder.file("c.json");
  EXPECT_EQ(refusal_of([&] { write_conversation(other, {}, {}); }).sentence,
            other + ": exists and is no conversation, expected a new file");
  EXPECT_EQ(content_of(other), "dear diary");
  write_conversation(file, {.model = "one", .messages = {{.role = "user", .content = "Hello"}}}, {});
  write_conversation(file, {.model = "two", .messages = {}}, {});
  ChatSettings settings;
  EXPECT_EQ(read_conversation(file, settings).model, "two");
  EXPECT_TRUE(read_conversation(file, settings).messages.empty());
}

TEST(LineHistory, IsAFileOfThisUserAlone) {
  const Folder folder;
  const std::string file = folder.file("state/headrace/history");
  LineHistory first{file};
  for (const char* line : {"one", "one", "", "two \\ lines\nof text", "one"}) first.add(line);
  LineHistory beside{file};
  beside.add("three");
  first.add("four");
  EXPECT_EQ(LineHistory{file}.lines(),
            (std::vector<std::string>{"one", "two \\ lines\nof text", "one", "three", "four"}));
  struct stat status {};
  ASSERT_EQ(stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
}

TEST(LineHistory, KeepsTheLastLines) {
  const Folder folder;
  const std::string file = folder.file("history");
  LineHistory all{file};
  for (size_t i = 0; i <= 2 * LineHistory::kMost; ++i) all.add(std::to_string(i));
  const LineHistory shortened{file};
  EXPECT_EQ(shortened.lines().size(), LineHistory::kMost);
  EXPECT_EQ(shortened.lines().back(), std::to_string(2 * LineHistory::kMost));
  const std::string text = content_of(file);
  EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')), LineHistory::kMost);
}

TEST(LineHistory, WithoutAFileLinesStayInMemory) {
  LineHistory lines{""};
  lines.add("one");
  EXPECT_EQ(lines.lines(), std::vector<std::string>{"one"});
}

}  // namespace
}  // namespace headrace::app
