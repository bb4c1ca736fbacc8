// Options from variables and a file: which goes before which, and what is refused.
#include "apps/settings.h"

#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "apps/option_values.h"
#include "support/refusal.h"

namespace headrace::app {
namespace {

using testing_support::refusal_of;
using Words = std::vector<std::string>;

// A program with one command that has settings, and one that has none.
struct Program {
  CLI::App app;
  int port = 8000;
  std::vector<std::string> keys, host = {"localhost"};
  int64_t wait = 0;  // milliseconds
  bool strict = false;
  std::string model, config;
  CLI::App* serve;

  Program() : serve(app.add_subcommand("serve")) {
    serve->add_option("--port", port)->check(integer_in(0, 65535))->capture_default_str();
    serve->add_option("--api-key", keys)->allow_extra_args(false);
    serve->add_option("--host", host)->delimiter(',')->capture_default_str();
    serve->add_option("--wait", wait)->transform(duration())->type_name(kTime);
    serve->add_flag("--strict", strict);
    serve->add_option("model,-m,--model", model);
    serve->add_option("--config", config);
    app.add_subcommand("list")->add_option("--port", port);
  }
  Words with(Words words, Origins& origins) const { return with_settings(app, std::move(words), origins); }
  Words with(Words words) const {
    Origins origins;
    return with(std::move(words), origins);
  }
};

class Settings : public testing::Test {
 protected:
  std::string file(std::string_view text) {
    std::ofstream(path_) << text;
    return path_;
  }
  void set(const char* name, const char* value) {
    setenv(name, value, 1);  // NOLINT(concurrency-mt-unsafe)
    names_.emplace_back(name);
  }
  ~Settings() override {
    for (const std::string& name : names_) unsetenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
    std::filesystem::remove(path_);
  }

  const std::string path_ = testing::TempDir() + "settings_test.toml";
  const Program program_;

 private:
  std::vector<std::string> names_;
};

TEST_F(Settings, TheLineGoesBeforeVariablesAndTheseBeforeTheFile) {
  const std::string config = file("port = 1\napi_key = ['a', 'b']\nstrict = true\n");
  Origins origins;
  EXPECT_EQ(program_.with({"serve", "--config", config}, origins),
            (Words{"serve", "--config", config, "--port=1", "--api-key=a", "--api-key=b", "--strict"}));
  EXPECT_EQ(origins.at("port"), config);
  set("HEADRACE_PORT", "2");
  origins.clear();
  EXPECT_EQ(program_.with({"serve", "--config=" + config}, origins),
            (Words{"serve", "--config=" + config, "--port=2", "--api-key=a", "--api-key=b", "--strict"}));
  EXPECT_EQ(origins.at("port"), "HEADRACE_PORT");
  EXPECT_EQ(program_.with({"serve", "--port", "3", "--strict", "--api-key=x", "--config", config}),
            (Words{"serve", "--port", "3", "--strict", "--api-key=x", "--config", config}));
}

TEST_F(Settings, AWordWithoutAnOptionIsTheModel) {
  set("HEADRACE_MODEL", "m");
  EXPECT_EQ(program_.with({"serve"}), (Words{"serve", "--model=m"}));
  EXPECT_EQ(program_.with({"serve", "mine"}), (Words{"serve", "mine"}));
  EXPECT_EQ(program_.with({"list"}), (Words{"list"})) << "a command without --config has no settings";
}

TEST_F(Settings, TheFilesPathMayBeAVariable) {
  set("HEADRACE_CONFIG", file("port = 7").c_str());
  EXPECT_EQ(program_.with({"serve"}), (Words{"serve", "--port=7"}));
}

TEST_F(Settings, FlagsAreTrueOrFalse) {
  set("HEADRACE_STRICT", "0");
  EXPECT_EQ(program_.with({"serve"}), (Words{"serve"}));
  set("HEADRACE_STRICT", "yes");
  EXPECT_EQ(program_.with({"serve"}), (Words{"serve", "--strict"}));
  set("HEADRACE_STRICT", "perhaps");
  EXPECT_EQ(refusal_of([&] { program_.with({"serve"}); }).sentence,
            "HEADRACE_STRICT: --strict: is 'perhaps', expected true or false");
}

TEST_F(Settings, RefusesAFileThatMakesNoSense) {
  const auto refused = [&](std::string_view text) {
    return refusal_of([&] { program_.with({"serve", "--config", file(text)}); }).sentence;
  };
  EXPECT_EQ(refused("prot = 1"), path_ + ": prot is no option of headrace serve; did you mean port?");
  EXPECT_EQ(refused("config = 'x'"), path_ + ": config belongs on the command line");
  EXPECT_EQ(refused("port = {a = 1}"), path_ + ": port: expected a text, a number, true or false, or a list of these");
  EXPECT_EQ(refused("api-key = ['a']\napi_key = ['b']"), path_ + ": api_key: the option is there twice");
  EXPECT_EQ(refused("port = 1\n [[["), "--config: " + path_ + ", line 2: [ begins a table, expected KEY = VALUE");
  EXPECT_TRUE(refused("port = \n").starts_with("--config: " + path_ + ", line 1: "));
  EXPECT_EQ(refusal_of([&] {
              program_.with({"serve", "--config", "/no/such/file"});
            }).sentence,
            "--config: /no/such/file cannot be read");
}

TEST_F(Settings, SentencesNameTheOrigin) {
  const Origins origins = {{"port", "HEADRACE_PORT"}};
  EXPECT_EQ(with_origin(origins, "--port: is 'x'"), "--port: is 'x' (from HEADRACE_PORT)");
  EXPECT_EQ(with_origin(origins, "--ports: is 'x'"), "--ports: is 'x'");
  EXPECT_EQ(with_origin({}, "--port: is 'x'"), "--port: is 'x'");
}

TEST_F(Settings, ShowsAFileThatSaysTheSame) {
  Program program;
  Origins origins;
  program.app.parse("serve --api-key secret --port 9 --host a,b --wait 2s", false);
  origins["host"] = "HEADRACE_HOST";
  const std::string text = settings_text(*program.serve, origins, {});
  EXPECT_EQ(text,
            "port = 9  # command line\n# api-key: 1 of them  # command line\nhost = [\"a\", \"b\"]  # HEADRACE_HOST\n"
            "wait = \"2000ms\"  # command line\n"
            "# strict = false\n# model is not set\n");
  EXPECT_EQ(program_.with({"serve", "--config", file(text)}),
            (Words{"serve", "--config", path_, "--port=9", "--host=a", "--host=b", "--wait=2000ms"}));
  EXPECT_NE(settings_text(*program_.serve, {}, {}).find("host = \"localhost\"  # default"), std::string::npos);
}

}  // namespace
}  // namespace headrace::app
