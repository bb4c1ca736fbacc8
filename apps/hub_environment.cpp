#include "hub_environment.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <initializer_list>
#include <iterator>

#include "environment.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

// The value of the first variable that has one; else empty.
std::string_view first_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (!variable(name).empty()) return variable(name);
  }
  return {};
}

bool is_true(std::string_view value) {
  std::string upper(value);
  std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  static constexpr std::array<std::string_view, 4> kTrue = {"1", "ON", "YES", "TRUE"};
  return std::ranges::find(kTrue, upper) != kTrue.end();
}

// $HF_HOME, or where it is by default; empty without HOME.
fs::path hub_home() {
  if (!variable("HF_HOME").empty()) return with_home(variable("HF_HOME"));
  if (!variable("XDG_CACHE_HOME").empty()) return with_home(variable("XDG_CACHE_HOME")) / "huggingface";
  if (variable("HOME").empty()) return {};
  return fs::path(variable("HOME")) / ".cache" / "huggingface";
}

std::string trimmed(std::string text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  text.erase(text.begin(), std::ranges::find_if_not(text, is_space));
  while (!text.empty() && is_space(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

std::string stored_token() {
  if (is_true(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return {};
  const std::string_view named = first_of({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  if (!named.empty()) return trimmed(std::string(named));
  const fs::path file = variable("HF_TOKEN_PATH").empty() ? hub_home() / "token" : with_home(variable("HF_TOKEN_PATH"));
  std::ifstream in(file);
  return trimmed({std::istreambuf_iterator<char>(in), {}});
}

}  // namespace

fs::path with_home(std::string_view path) {
  const bool at_home = path == "~" || path.starts_with("~/");
  if (!at_home || variable("HOME").empty()) return path;
  return fs::path(variable("HOME")) / path.substr(std::min<size_t>(2, path.size()));
}

fs::path hub_cache() {
  const std::string_view named = first_of({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  if (!named.empty()) return with_home(named);
  const fs::path home = hub_home();
  return home.empty() ? home : home / "hub";
}

bool hub_is_offline() { return is_true(first_of({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})); }

HubSettings hub_settings(const std::string& token) {
  HubSettings settings;
  if (!variable("HF_ENDPOINT").empty()) settings.endpoint = variable("HF_ENDPOINT");
  settings.token = token.empty() ? stored_token() : token;
  settings.certificates = first_of({"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"});
  settings.certificate_folder = variable("SSL_CERT_DIR");
  return settings;
}

}  // namespace headrace::app
