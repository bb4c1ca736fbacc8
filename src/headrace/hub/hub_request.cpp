#include "headrace/hub/hub_request.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "headrace/core/error.h"
#include "headrace/hub/certificates.h"

namespace headrace {
namespace {

using std::chrono::milliseconds;

// libcurl's state for the whole process, which it keeps until the end.
void start_curl() {
  static const CURLcode kStarted = curl_global_init(CURL_GLOBAL_DEFAULT);
  HR_REQUIRE(kStarted == CURLE_OK, ErrorCode::kIo, "libcurl cannot start: ", curl_easy_strerror(kStarted));
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

template <class Value>
void set(CURL* handle, CURLoption option, Value value) {
  HR_ASSERT(curl_easy_setopt(handle, option, value) == CURLE_OK);
}

}  // namespace

HubRequest::HubRequest(const HubSettings& settings, const std::string& url, Body body)
    : url_(url), body_(std::move(body)) {
  start_curl();
  handle_.reset(curl_easy_init());
  HR_ASSERT(handle_ != nullptr);
  CURL* const curl = handle_.get();
  set(curl, CURLOPT_URL, url_.c_str());
  set(curl, CURLOPT_NOSIGNAL, 1L);
  set(curl, CURLOPT_ERRORBUFFER, words_.data());
  set(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  set(curl, CURLOPT_REDIR_PROTOCOLS_STR, url_.starts_with("https:") ? "https" : "http,https");
  set(curl, CURLOPT_FOLLOWLOCATION, 1L);
  set(curl, CURLOPT_MAXREDIRS, 10L);
  // A connection for each file: one that they share, as HTTP/2 does, is slower than several.
  set(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings.connect_time.count()));
  set(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings.stall_time.count()));
  set(curl, CURLOPT_BUFFERSIZE, 256L << 10);
  set(curl, CURLOPT_USERAGENT, "headrace");
  set(curl, CURLOPT_HEADEROPT, static_cast<long>(CURLHEADER_SEPARATE));  // proxies do not see the token
  set_certificates(settings);
  add_header("Accept-Encoding: identity");  // sizes are of the files themselves
  if (!settings.token.empty()) add_header("Authorization: Bearer " + settings.token);
  set(curl, CURLOPT_HTTPHEADER, sent_headers_.get());
  set(curl, CURLOPT_HEADERFUNCTION, &HubRequest::on_header);
  set(curl, CURLOPT_HEADERDATA, this);
  set(curl, CURLOPT_WRITEFUNCTION, &HubRequest::on_body);
  set(curl, CURLOPT_WRITEDATA, this);
}

void HubRequest::add_header(const std::string& line) {
  curl_slist* const longer = curl_slist_append(sent_headers_.get(), line.c_str());
  HR_ASSERT(longer != nullptr);
  static_cast<void>(sent_headers_.release());  // the same list, or none
  sent_headers_.reset(longer);
}

void HubRequest::set_certificates(const HubSettings& settings) {
  const std::string file = settings.certificates.empty() ? certificate_bundle() : settings.certificates;
  if (!file.empty()) set(handle_.get(), CURLOPT_CAINFO, file.c_str());
  if (!settings.certificate_folder.empty()) set(handle_.get(), CURLOPT_CAPATH, settings.certificate_folder.c_str());
}

void HubRequest::ask_for_headers() { set(handle_.get(), CURLOPT_NOBODY, 1L); }

void HubRequest::begin_at(int64_t offset) {
  // Not CURLOPT_RESUME_FROM: with it libcurl fails where a server answers with the whole file.
  if (offset > 0) set(handle_.get(), CURLOPT_RANGE, str(offset, "-").c_str());
}

bool HubRequest::connected() const {
  curl_off_t microseconds = 0;
  curl_easy_getinfo(handle_.get(), CURLINFO_CONNECT_TIME_T, &microseconds);
  return microseconds > 0;
}

int HubRequest::status() const {
  long status = 0;
  curl_easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

std::string HubRequest::header(std::string_view name) const {
  const auto found = headers_.find(name);
  return found == headers_.end() ? "" : found->second;
}

std::string HubRequest::fault(CURLcode code) const {
  return words_[0] != '\0' ? std::string(trimmed(words_.data())) : curl_easy_strerror(code);
}

size_t HubRequest::on_header(char* text, size_t size, size_t count, void* request) {
  const std::string_view line(text, size * count);
  const size_t colon = line.find(':');
  if (colon != line.npos) {
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    static_cast<HubRequest*>(request)->headers_[name] = trimmed(line.substr(colon + 1));
  }
  return line.size();
}

size_t HubRequest::on_body(char* bytes, size_t size, size_t count, void* request) {
  const size_t length = size * count;
  return static_cast<HubRequest*>(request)->body_({bytes, length}) ? length : length + 1;  // another number ends it
}

bool is_transient(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR: return true;
    default: return false;
  }
}

bool is_transient(int status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

milliseconds wait_after(int failures, const HubRequest& request, const HubSettings& settings) {
  const std::string asked = request.header("retry-after");
  int seconds = 0;
  if (std::from_chars(asked.data(), asked.data() + asked.size(), seconds).ec == std::errc() && seconds >= 0) {
    return std::chrono::seconds(std::min(seconds, 60));
  }
  return settings.first_wait * (1 << std::clamp(failures - 1, 0, 3));
}

}  // namespace headrace
