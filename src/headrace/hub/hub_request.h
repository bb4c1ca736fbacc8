// One HTTP request to a hub, by libcurl. Internal to src/headrace/hub.
#pragma once
#include <curl/curl.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "headrace/hub/hub_settings.h"

namespace headrace {

// A GET. The token goes to the host of `settings.endpoint` alone: libcurl leaves it out where a redirect leads to
// another host, port or scheme. Redirects from https lead to https.
class HubRequest {
 public:
  // `body` receives the body of the last response in pieces; it returns false to end the request, and throws nothing.
  using Body = std::function<bool(std::string_view)>;
  HubRequest(const HubSettings& settings, const std::string& url, Body body);
  HubRequest(const HubRequest&) = delete;
  HubRequest& operator=(const HubRequest&) = delete;

  void ask_for_headers();         // alone: a HEAD
  void begin_at(int64_t offset);  // asks for what is behind so many bytes

  CURL* handle() const { return handle_.get(); }
  const std::string& url() const { return url_; }
  bool connected() const;  // ever
  int status() const;      // of the last response; 0: there is none
  // A header of the responses, by its name in lower case; the last one where several have it. Empty: none has it.
  std::string header(std::string_view name) const;
  std::string fault(CURLcode code) const;  // in libcurl's words

 private:
  struct Free {
    void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
    void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  };
  static size_t on_header(char* text, size_t size, size_t count, void* request);
  static size_t on_body(char* bytes, size_t size, size_t count, void* request);
  void add_header(const std::string& line);
  void set_certificates(const HubSettings& settings);

  std::string url_;
  Body body_;
  std::map<std::string, std::string, std::less<>> headers_;
  std::array<char, CURL_ERROR_SIZE> words_{};
  std::unique_ptr<curl_slist, Free> sent_headers_;
  std::unique_ptr<CURL, Free> handle_;
};

// Returns true for what may be over a moment later: a cut connection, a server that is busy.
bool is_transient(CURLcode code);
bool is_transient(int status);

// The wait before try number `failures` + 1: `settings.first_wait`, doubled each time up to 8 times it, or what the
// server asks for with Retry-After, at most a minute.
std::chrono::milliseconds wait_after(int failures, const HubRequest& request, const HubSettings& settings);

}  // namespace headrace
