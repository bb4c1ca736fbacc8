#include "headrace/hub/hub_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <thread>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/hub/hub_request.h"

namespace headrace {
namespace {

constexpr size_t kMostListing = size_t{64} << 20;  // bytes
constexpr std::string_view kTokens = "https://huggingface.co/settings/tokens";

// `kept`: characters beside letters, digits and "-_.~" that stay.
std::string percent_encoded(std::string_view text, std::string_view kept) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~";
  std::string out;
  for (const char c : text) {
    if (kPlain.find(c) != kPlain.npos || kept.find(c) != kept.npos) {
      out += c;
    } else {
      constexpr std::string_view kHex = "0123456789ABCDEF";
      out += {'%', kHex[static_cast<unsigned char>(c) >> 4], kHex[static_cast<unsigned char>(c) & 15]};
    }
  }
  return out;
}

std::string host_of(const std::string& url) {
  const size_t begin = url.find("://") + 3;
  return url.substr(begin, url.find('/', begin) - begin);
}

// The tag without quotes, and without the mark of a weak one.
std::string plain_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  std::string plain(etag);
  std::erase(plain, '"');
  return plain;
}

Error network_error(std::string_view host, std::string_view fault) {
  return {ErrorCode::kIo, str(host, ": cannot be reached: ", fault,
                              "; HF_ENDPOINT names another hub, and https_proxy a proxy; without a network, copy a "
                              "model's directory here and name it")};
}

}  // namespace

HubClient::HubClient(HubSettings settings) : settings_(std::move(settings)) {
  std::string& endpoint = settings_.endpoint;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  HR_REQUIRE(endpoint.starts_with("https://") || endpoint.starts_with("http://"), ErrorCode::kInvalidArgument,
             "HF_ENDPOINT: is '", printable(endpoint), "', expected an address such as https://huggingface.co");
  const bool plain = std::ranges::all_of(settings_.token, [](char c) { return c > 0x20 && c < 0x7f; });
  HR_REQUIRE(plain, ErrorCode::kInvalidArgument,
             "the hub's token (--token or HF_TOKEN) holds a space, a control character or one beyond ASCII, expected a "
             "word such as hf_...");
}

// Returns the first answer with status 200.
HubClient::Answer HubClient::ask(const HubName& name, const std::string& url, Method method) const {
  for (int failures = 1;; ++failures) {
    std::string body;
    auto request = std::make_unique<HubRequest>(settings_, url, [&body](std::string_view bytes) {
      body += bytes;
      return body.size() <= kMostListing;
    });
    if (method == Method::kHead) request->ask_for_headers();
    const CURLcode code = curl_easy_perform(request->handle());
    const int status = request->status();
    if (code == CURLE_OK && status == 200) return {std::move(request), std::move(body)};
    const bool again = code == CURLE_OK ? is_transient(status) : is_transient(code) && request->connected();
    if (!again || failures >= settings_.tries)
      throw code == CURLE_OK ? refusal(*request, name) : failure(*request, code);
    std::this_thread::sleep_for(wait_after(failures, *request, settings_));
  }
}

HubListing HubClient::list(const HubName& name) const {
  const std::string url = str(settings_.endpoint, "/api/models/", percent_encoded(name.repository, "/"), "/revision/",
                              percent_encoded(name.revision, ""), "?blobs=true");
  return parse_hub_listing(ask(name, url, Method::kGet).body, url);
}

// A redirect to where large files lie has X-Linked-Etag and X-Linked-Size: the headers behind it are of that host's
// own.
HubFile HubClient::describe(const HubName& name, const std::string& commit, const std::string& file) const {
  const Answer answer = ask(name, file_url(name.repository, commit, file), Method::kHead);
  const auto either = [&answer](std::string_view first, std::string_view second) {
    const std::string value = answer.request->header(first);
    return value.empty() ? answer.request->header(second) : value;
  };
  HubFile described{.name = file, .etag = plain_etag(either("x-linked-etag", "etag"))};
  const std::string size = either("x-linked-size", "content-length");
  std::from_chars(size.data(), size.data() + size.size(), described.size);
  HR_REQUIRE(is_checkable(described), ErrorCode::kModelFile, name.repository,
             ": the hub does not say the size and the ", "hash of ", file,
             ", without which a download cannot be checked");
  return described;
}

std::string HubClient::file_url(const std::string& repository, const std::string& commit,
                                const std::string& file) const {
  return str(settings_.endpoint, "/", percent_encoded(repository, "/"), "/resolve/", commit, "/",
             percent_encoded(file, "/"));
}

Error HubClient::failure(const HubRequest& request, int code) const {
  const std::string host = host_of(request.url()), fault = request.fault(static_cast<CURLcode>(code));
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    return {ErrorCode::kIo, str(host, ": its certificate is not trusted: ", fault,
                                "; SSL_CERT_FILE names a file of certificates to trust")};
  }
  return network_error(host, fault);
}

Error HubClient::refused_access(const HubRequest& request, const HubName& name) const {
  const std::string page = settings_.endpoint + "/" + name.repository;
  const bool has_token = !settings_.token.empty();
  if (request.header("x-error-code") == "GatedRepo") {
    return {ErrorCode::kModelFile,
            has_token
                ? str(name.repository, ": is gated, and the token's account has no access: accept the terms at ", page)
                : str(name.repository, ": is gated: accept its terms at ", page, ", then set HF_TOKEN to a token of ",
                      kTokens)};
  }
  if (has_token && request.header("x-error-message").starts_with("Invalid credentials")) {
    return {ErrorCode::kModelFile,
            str(settings_.endpoint, ": refuses the token (of --token, HF_TOKEN or hf auth login); ", kTokens,
                " makes one")};
  }
  return {ErrorCode::kModelFile,
          str(name.repository, ": ", settings_.endpoint, " has no such model, or it is private",
              has_token ? " and the token's account may not read it" : ": set HF_TOKEN to a token that may read it")};
}

Error HubClient::refusal(const HubRequest& request, const HubName& name) const {
  const int status = request.status();
  const std::string code = request.header("x-error-code");
  if (code == "RevisionNotFound") {
    return {ErrorCode::kModelFile,
            str(name.repository, ": has no revision '", name.revision, "' on ", settings_.endpoint)};
  }
  if (code == "EntryNotFound") {
    return {ErrorCode::kModelFile,
            str(name.repository, ": the hub lists a file that it does not have: ", printable(request.url(), 200))};
  }
  if (status == 401 || status == 403) return refused_access(request, name);
  if (status == 404 || code == "RepoNotFound") {
    return {ErrorCode::kModelFile, str(name.repository, ": ", settings_.endpoint, " has no such model")};
  }
  const std::string said = printable(request.header("x-error-message"));
  return {ErrorCode::kIo,
          str(host_of(request.url()), ": answers with status ", status, said.empty() ? "" : ", ", said,
              status == 429 ? ", too many requests; HF_TOKEN raises the limit" : "", "; try again later")};
}

}  // namespace headrace
