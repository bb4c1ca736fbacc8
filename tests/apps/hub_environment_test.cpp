#include "apps/hub_environment.h"

#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/fake_root.h"

namespace headrace::app {
namespace {

// Environment variables, as they were again at the end. These tests have one thread.
class ScopedVariables {
 public:
  ScopedVariables(std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const auto& [name, value] : values) {
      const char* before = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
      before_.emplace_back(name, before != nullptr ? std::optional<std::string>(before) : std::nullopt);
      set(name, value);
    }
  }
  ScopedVariables(const ScopedVariables&) = delete;
  ScopedVariables& operator=(const ScopedVariables&) = delete;
  ~ScopedVariables() {
    for (const auto& [name, value] : before_) {
      if (value) {
        set(name, value->c_str());
      } else {
        unsetenv(name);  // NOLINT(concurrency-mt-unsafe)
      }
    }
  }
  void set(const char* name, const char* value) const { setenv(name, value, 1); }  // NOLINT(concurrency-mt-unsafe)

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

// HUGGINGFACE_HUB_CACHE was not read, and "~" stayed a folder's name.
TEST(HubCachePlace, IsWhereTheVariablesSay) {
  const ScopedVariables variables{{"HOME", "/home/me"},
                                  {"HF_HUB_CACHE", ""},
                                  {"HUGGINGFACE_HUB_CACHE", ""},
                                  {"HF_HOME", ""},
                                  {"XDG_CACHE_HOME", ""}};
  EXPECT_EQ(hub_cache(), "/home/me/.cache/huggingface/hub");
  variables.set("XDG_CACHE_HOME", "~/cache");
  EXPECT_EQ(hub_cache(), "/home/me/cache/huggingface/hub");
  variables.set("HF_HOME", "~/hf");
  EXPECT_EQ(hub_cache(), "/home/me/hf/hub");
  variables.set("HUGGINGFACE_HUB_CACHE", "/data/hub");
  EXPECT_EQ(hub_cache(), "/data/hub");
  variables.set("HF_HUB_CACHE", "~");
  EXPECT_EQ(hub_cache(), "/home/me/");
}

}  // namespace
}  // namespace headrace::app
