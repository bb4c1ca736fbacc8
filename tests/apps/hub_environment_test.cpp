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

class HubSettingsTest : public testing_support::FakeRoot {
 protected:
  const std::string home_ = root_.string();
  const ScopedVariables variables_{{"HOME", home_.c_str()}, {"HF_HOME", ""},
                                   {"XDG_CACHE_HOME", ""},  {"HF_ENDPOINT", ""},
                                   {"HF_TOKEN", ""},        {"HUGGING_FACE_HUB_TOKEN", ""},
                                   {"HF_TOKEN_PATH", ""},   {"HF_HUB_DISABLE_IMPLICIT_TOKEN", ""},
                                   {"CURL_CA_BUNDLE", ""},  {"REQUESTS_CA_BUNDLE", ""},
                                   {"SSL_CERT_FILE", ""},   {"SSL_CERT_DIR", ""},
                                   {"HF_HUB_OFFLINE", ""},  {"TRANSFORMERS_OFFLINE", ""}};
};

TEST_F(HubSettingsTest, TheTokenIsTheFirstThatIsSet) {
  EXPECT_EQ(hub_settings("").token, "");
  write(".cache/huggingface/token", "hf_stored\n");
  EXPECT_EQ(hub_settings("").token, "hf_stored");
  write("other", " hf_named ");
  variables_.set("HF_TOKEN_PATH", "~/other");
  EXPECT_EQ(hub_settings("").token, "hf_named");
  variables_.set("HUGGING_FACE_HUB_TOKEN", "hf_old");
  EXPECT_EQ(hub_settings("").token, "hf_old");
  variables_.set("HF_TOKEN", "hf_new\n");
  EXPECT_EQ(hub_settings("").token, "hf_new");
  variables_.set("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
  EXPECT_EQ(hub_settings("").token, "");
  EXPECT_EQ(hub_settings("hf_flag").token, "hf_flag");
}

TEST_F(HubSettingsTest, EndpointAndCertificatesAreThoseOfTheEnvironment) {
  EXPECT_EQ(hub_settings("").endpoint, "https://huggingface.co");
  variables_.set("HF_ENDPOINT", "https://hub.example");
  variables_.set("CURL_CA_BUNDLE", "/a.pem");
  EXPECT_EQ(hub_settings("").endpoint, "https://hub.example");
  EXPECT_EQ(hub_settings("").certificates, "/a.pem");
  variables_.set("SSL_CERT_FILE", "/b.pem");
  EXPECT_EQ(hub_settings("").certificates, "/b.pem");
}

TEST_F(HubSettingsTest, OfflineIsWhatHuggingFacesLibraryTakesForTrue) {
  EXPECT_FALSE(hub_is_offline());
  for (const char* value : {"1", "on", "Yes", "TRUE"}) {
    variables_.set("HF_HUB_OFFLINE", value);
    EXPECT_TRUE(hub_is_offline()) << value;
  }
  for (const char* value : {"0", "no", "false"}) {
    variables_.set("HF_HUB_OFFLINE", value);
    EXPECT_FALSE(hub_is_offline()) << value;
  }
  variables_.set("HF_HUB_OFFLINE", "");
  variables_.set("TRANSFORMERS_OFFLINE", "1");
  EXPECT_TRUE(hub_is_offline());
}

}  // namespace
}  // namespace headrace::app
