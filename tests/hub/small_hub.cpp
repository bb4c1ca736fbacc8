#include "hub/small_hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <utility>

#include "headrace/core/scope_end.h"
#include "headrace/hub/content_hash.h"
#include "headrace/text/json_string.h"

namespace headrace::testing_support {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

std::string hash_of(const std::string& content, size_t digits) {
  ContentHash hash(std::string(digits, '0'), static_cast<int64_t>(content.size()));
  hash.add(content);
  return hash.digits();
}

std::string etag_of(const SmallHub::File& file) { return hash_of(file.content, file.lfs ? 64 : 40); }

std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16);
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// "before" and "after" a word in a path; nothing where it is not there.
std::optional<std::pair<std::string, std::string>> split_at(const std::string& text, const std::string& word) {
  const size_t at = text.find(word);
  if (at == std::string::npos) return std::nullopt;
  return std::pair(text.substr(0, at), text.substr(at + word.size()));
}

}  // namespace

SmallHub::SmallHub() : acceptor_(context_, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0)) {
  accepting_ = std::jthread([this] { accept(); });
}

SmallHub::~SmallHub() {
  ends_ = true;
  boost::system::error_code ignored;
  tcp::socket waker(context_);  // ends the wait for a connection
  waker.connect(acceptor_.local_endpoint(), ignored);
  accepting_.join();
}

std::string SmallHub::endpoint() const { return fmt::format("http://127.0.0.1:{}", acceptor_.local_endpoint().port()); }

std::string SmallHub::set_repository(const std::string& name, const Files& files) {
  std::string all;
  for (const auto& [path, file] : files) all += path + "\n" + etag_of(file) + "\n";
  std::string commit = hash_of(all, 40);
  const std::lock_guard lock(mutex_);
  Repository& repository = repositories_[name];
  repository.commit = commit;
  repository.files = files;
  return commit;
}

void SmallHub::set_gated(const std::string& name, const std::string& token) {
  const std::lock_guard lock(mutex_);
  repositories_[name].token = token;
}

void SmallHub::redirect_weights_to(std::string endpoint) {
  const std::lock_guard lock(mutex_);
  weights_elsewhere_ = std::move(endpoint);
}

void SmallHub::add_fault(Fault fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(fault));
}

std::vector<SmallHub::Seen> SmallHub::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

int64_t SmallHub::count(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::count_if(seen_, [&path](const Seen& seen) { return seen.path.find(path) != std::string::npos; });
}

void SmallHub::accept() {
  while (true) {
    boost::system::error_code error;
    tcp::socket socket = acceptor_.accept(context_, error);
    if (ends_ || error) return;
    connections_.emplace_back([this, socket = std::move(socket)]() mutable { serve(socket); });
  }
}

// One request per connection.
void SmallHub::serve(tcp::socket& socket) {
  boost::beast::flat_buffer buffer;
  http::request<http::string_body> read;
  boost::system::error_code error;
  http::read(socket, buffer, read, error);
  if (error) return;
  const Seen request{.method = std::string(read.method_string()),
                     .path = decoded(std::string_view(read.target().data(), read.target().size())),
                     .range = std::string(read[http::field::range]),
                     .authorization = std::string(read[http::field::authorization])};
  {
    const std::lock_guard lock(mutex_);
    seen_.push_back(request);
    most_at_once_ = std::max<int>(most_at_once_, ++at_once_);
  }
  answer(socket, request);
  socket.shutdown(tcp::socket::shutdown_both, error);
}

std::optional<SmallHub::Fault> SmallHub::fault_of(const Seen& request) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      faults_, [&request](const Fault& f) { return f.times > 0 && request.path.find(f.path) != std::string::npos; });
  if (found == faults_.end()) return std::nullopt;
  --found->times;
  return *found;
}

bool SmallHub::answer(tcp::socket& socket, const Seen& request) {
  const Fault fault = fault_of(request).value_or(Fault{});
  Answer answer = fault.status != 0 ? Answer{.status = fault.status} : answer_to(request);
  for (const auto& [name, value] : fault.headers) answer.headers[name] = value;
  if (fault.content && answer.status == 200) answer.body = *fault.content;
  return send(socket, request, std::move(answer), fault);
}

SmallHub::Answer SmallHub::answer_to(const Seen& request) {
  const std::string path = request.path.substr(0, request.path.find('?'));
  if (path.starts_with("/api/models/")) {
    const std::string rest = path.substr(std::string("/api/models/").size());
    if (const auto revision = split_at(rest, "/revision/")) return listing(revision->first, revision->second, false);
    if (const auto tree = split_at(rest, "/tree/")) return listing(tree->first, tree->second, true);
    return listing(rest, "main", false);
  }
  const auto resolve = split_at(path, "/resolve/");
  if (!resolve) return {.status = 404};
  const size_t slash = resolve->second.find('/');
  return file(request, resolve->first.substr(1), resolve->second.substr(slash + 1));
}

SmallHub::Answer SmallHub::listing(const std::string& name, const std::string& revision, bool tree) {
  const std::lock_guard lock(mutex_);
  const auto found = repositories_.find(name);
  if (found == repositories_.end()) return {.status = 401, .headers = {{"X-Error-Code", "RepoNotFound"}}};
  const Repository& repository = found->second;
  if (revision != "main" && revision != repository.commit && revision != "refs/pr/1") {
    return {.status = 404, .headers = {{"X-Error-Code", "RevisionNotFound"}}};
  }
  std::string files;
  for (const auto& [path, file] : repository.files) {
    if (names_alone_) {
      files += fmt::format(R"({}{{"rfilename": {}}})", files.empty() ? "" : ", ", json_string(path));
      continue;
    }
    const std::string pointer = hash_of("pointer to " + etag_of(file), 40);
    const std::string lfs = file.lfs ? fmt::format(R"(, "lfs": {{"{}": "{}", "size": {}, "pointerSize": 134}})",
                                                   tree ? "oid" : "sha256", etag_of(file), file.content.size())
                                     : std::string();
    files += fmt::format(R"({}{{"type": "file", "{}": {}, "size": {}, "{}": "{}"{}}})", files.empty() ? "" : ", ",
                         tree ? "path" : "rfilename", json_string(path), file.content.size(), tree ? "oid" : "blobId",
                         file.lfs ? pointer : etag_of(file), lfs);
  }
  const std::string list = "[" + files + "]";
  return {.headers = {{"Content-Type", "application/json"}},
          .body = tree ? list
                       : fmt::format(R"({{"id": {}, "sha": "{}", "private": false, "tags": [], "siblings": {}}})",
                                     json_string(name), repository.commit, list)};
}

SmallHub::Answer SmallHub::file(const Seen& request, const std::string& name, const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found = repositories_.find(name);
  if (found == repositories_.end()) return {.status = 401, .headers = {{"X-Error-Code", "RepoNotFound"}}};
  const Repository& repository = found->second;
  if (!repository.token.empty() && request.authorization != "Bearer " + repository.token) {
    return {.status = request.authorization.empty() ? 401 : 403, .headers = {{"X-Error-Code", "GatedRepo"}}};
  }
  const auto file = repository.files.find(path);
  if (file == repository.files.end()) {
    return {.status = 404, .headers = {{"X-Error-Code", "EntryNotFound"}, {"X-Repo-Commit", repository.commit}}};
  }
  const std::string etag = "\"" + etag_of(file->second) + "\"";
  Answer answer{.headers = {{"X-Repo-Commit", repository.commit}, {"ETag", etag}}, .body = file->second.content};
  if (file->second.lfs) {
    answer.headers["X-Linked-Etag"] = etag;
    answer.headers["X-Linked-Size"] = std::to_string(file->second.content.size());
  }
  if (file->second.lfs && !weights_elsewhere_.empty()) {
    answer.status = 302;
    answer.headers["Location"] = weights_elsewhere_ + request.path;
    answer.body = "Found. Redirecting";
  }
  return answer;
}

bool SmallHub::send(tcp::socket& socket, const Seen& request, Answer answer, const Fault& fault) {
  if (answer.status == 200 && request.range.starts_with("bytes=") && !fault.ignores_range) {
    const std::string whole = std::to_string(answer.body.size());
    const size_t begin = std::stoul(request.range.substr(6));
    answer.status = begin < answer.body.size() ? 206 : 416;
    answer.body = begin < answer.body.size() ? answer.body.substr(begin) : "";
    answer.headers["Content-Range"] = fmt::format("bytes {}-{}/{}", begin, std::stoul(whole) - 1, whole);
  }
  bool counted = true;
  const auto leave = [&] { at_once_ -= std::exchange(counted, false) ? 1 : 0; };
  const ScopeEnd left(leave);
  std::string head = fmt::format("HTTP/1.1 {} x\r\nConnection: close\r\n", answer.status);
  if (!fault.no_length) head += fmt::format("Content-Length: {}\r\n", answer.body.size());
  for (const auto& [name, value] : answer.headers) head += fmt::format("{}: {}\r\n", name, value);
  head += "\r\n";
  boost::system::error_code error;
  if (answer.body.empty() || request.method == "HEAD") leave();  // before the client knows that this is all
  asio::write(socket, asio::buffer(head), error);
  if (request.method == "HEAD") return !error;
  const std::string_view body = std::string_view(answer.body).substr(0, fault.cut_after.value_or(answer.body.size()));
  constexpr size_t kPiece = 16 << 10;
  for (size_t sent = 0; sent < body.size() && !error && !ends_;) {
    size_t piece = std::min(kPiece, body.size() - sent);
    if (fault.stall_after && sent <= *fault.stall_after) piece = std::min(piece, *fault.stall_after - sent);
    if (piece == 0) {
      for (int i = 0; i < 150 && !ends_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return false;
    }
    if (sent + piece == body.size()) leave();
    sent += asio::write(socket, asio::buffer(body.data() + sent, piece), error);
    if (bytes_per_s_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(1000000 * piece / bytes_per_s_));
  }
  return !error;
}

}  // namespace headrace::testing_support
