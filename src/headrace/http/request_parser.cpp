#include "headrace/http/request_parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <optional>
#include <string_view>

#include "headrace/core/printable.h"
#include "headrace/http/request_target.h"

namespace headrace {
namespace {

namespace beast = boost::beast;
using BeastError = boost::system::error_code;

constexpr size_t kMaxChunkHead = 8 << 10;  // of a chunk's size and extensions, and of all trailers
constexpr size_t kMinChunkBytes = 5;       // of a last chunk; Beast's parser asserts that it sees as many

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

int64_t count_of(const HttpRequest& request, std::string_view name) {
  return std::ranges::count(request.headers, name, [](const auto& header) { return std::string_view(header.first); });
}

bool equals(const HttpRequest& request, std::string_view name, std::string_view value) {
  const std::string* const found = request.header(name);
  return found != nullptr && lower_case(*found) == value;
}

// Beast's grammar of heads, headers and chunks; it fills a request.
class MessageParser final : public beast::http::basic_parser<true> {
 public:
  HttpRequest request;
  bool is_http11 = false;

 private:
  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view target, int version,
                       BeastError& error) override {
    request.method = std::string(method);
    is_http11 = version == 11;
    std::optional<RequestTarget> parts = headrace::parse_target({target.data(), target.size()});
    if (!parts) {
      error = beast::http::error::bad_target;
      return;
    }
    request.path = std::move(parts->path);
    request.query = std::move(parts->query);
  }
  void on_response_impl(int, beast::string_view, int, BeastError&) override {}
  void on_field_impl(beast::http::field, beast::string_view name, beast::string_view value, BeastError&) override {
    if (in_body_) return;  // a trailer
    request.headers.emplace_back(lower_case({name.data(), name.size()}), std::string(value));
  }
  void on_header_impl(BeastError&) override { in_body_ = true; }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, BeastError&) override {}
  std::size_t on_body_impl(beast::string_view body, BeastError&) override { return add(body); }
  void on_chunk_header_impl(std::uint64_t, beast::string_view, BeastError&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, beast::string_view body, BeastError&) override { return add(body); }
  void on_finish_impl(BeastError&) override {}

  size_t add(beast::string_view body) {
    request.body.append(body.data(), body.size());
    return body.size();
  }

  bool in_body_ = false;
};

// Of a head that Beast accepts.
std::optional<HttpRefusal> refusal_of_head(const HttpRequest& request, bool is_http11, int32_t max_headers) {
  if (std::ssize(request.headers) > max_headers) {
    return HttpRefusal{431, str("the request has ", request.headers.size(), " headers, at most ", max_headers)};
  }
  const int64_t hosts = count_of(request, "host"), lengths = count_of(request, "content-length");
  if (hosts > 1 || (hosts == 0 && is_http11)) {
    return HttpRefusal{400, str("the request has ", hosts, " Host headers, expected one")};
  }
  if (lengths > 1 || (lengths == 1 && request.header("content-length")->find(',') != std::string::npos)) {
    return HttpRefusal{400, "the request has more than one Content-Length"};
  }
  if (const std::string* const coding = request.header("transfer-encoding")) {
    if (!is_http11) return HttpRefusal{400, "HTTP/1.0 has no Transfer-Encoding"};
    if (lower_case(*coding) != "chunked") {
      return HttpRefusal{501, str("Transfer-Encoding is '", printable(*coding), "', expected chunked")};
    }
  }
  if (request.header("expect") != nullptr && !equals(request, "expect", "100-continue")) {
    return HttpRefusal{417, str("Expect is '", printable(*request.header("expect")), "', expected 100-continue")};
  }
  return std::nullopt;
}

// Two programs may read a folded line, or one that ends without CR, in two ways.
bool has_strict_lines(std::string_view head) {
  for (size_t at = head.find('\n'); at != head.npos; at = head.find('\n', at + 1)) {
    if (at == 0 || head[at - 1] != '\r') return false;
    if (at + 1 < head.size() && (head[at + 1] == ' ' || head[at + 1] == '\t')) return false;
  }
  return true;
}

HttpRefusal refusal_of_error(const BeastError& error, const HttpLimits& limits) {
  if (error == beast::http::error::body_limit) {
    return {413, str("the request's body is longer than ", limits.max_body_bytes, " bytes")};
  }
  return {400, str("the request is malformed: ", error.message())};
}

}  // namespace

struct RequestParser::Parts {
  HttpLimits limits;
  MessageParser message = {};
  State state = State::kHead;
  HttpRefusal refusal = {};
  size_t scanned = 0;  // bytes of a head in which its end is not
  bool line_is_checked = false;

  State refuse(HttpRefusal why) {
    refusal = std::move(why);
    return state = State::kRefused;
  }
  State refuse_long_head() {
    if (line_is_checked) {
      return refuse({431, str("the request's headers are longer than ", limits.max_header_bytes, " bytes")});
    }
    return refuse({414, str("the request's target is longer than ", limits.max_header_bytes, " bytes")});
  }
  State parse_head(std::string& input);
  State check_line(std::string_view input);
  State take_head(std::string& input, size_t size);
  State parse_body(std::string& input);
};

// An early answer to what is not HTTP/1.1: TLS, HTTP/2, HTTP/0.9. Their heads never end as ours do.
RequestParser::State RequestParser::Parts::check_line(std::string_view input) {
  const size_t end = input.find('\n');
  if (end == input.npos) {
    const bool is_text = std::ranges::all_of(input, [](char c) { return c == '\r' || static_cast<uint8_t>(c) >= 32; });
    if (!is_text) return refuse({400, "the request does not begin with a line of text, expected HTTP/1.1"});
    return input.size() > limits.max_header_bytes ? refuse_long_head() : State::kHead;
  }
  if (end > limits.max_header_bytes) return refuse_long_head();
  if (end == 0 || input[end - 1] != '\r') return refuse({400, "the request line does not end in CRLF"});
  if (auto why = refusal_of_line(input.substr(0, end - 1))) return refuse(std::move(*why));
  line_is_checked = true;
  return State::kHead;
}

RequestParser::State RequestParser::Parts::parse_head(std::string& input) {
  if (!line_is_checked) {
    while (input.starts_with("\r\n")) input.erase(0, 2);  // some clients send one behind a body
    if (input.empty() || input == "\r") return State::kHead;
    if (check_line(input) == State::kRefused || !line_is_checked) return state;
  }
  const size_t end = input.find("\r\n\r\n", scanned);
  if (std::min(end, input.size()) > limits.max_header_bytes) return refuse_long_head();
  if (end != input.npos) return take_head(input, end + 4);
  scanned = input.size() - std::min<size_t>(input.size(), 3);
  return State::kHead;
}

RequestParser::State RequestParser::Parts::take_head(std::string& input, size_t size) {
  if (!has_strict_lines({input.data(), size})) return refuse({400, "a header is folded or does not end in CRLF"});
  // Our limits are checked here: Beast counts a head that comes in pieces anew with each piece.
  message.header_limit(static_cast<uint32_t>(size + 1));
  message.body_limit(limits.max_body_bytes);
  BeastError error;
  input.erase(0, message.put({input.data(), size}, error));
  if (error) return refuse(refusal_of_error(error, limits));
  if (auto why = refusal_of_head(message.request, message.is_http11, limits.max_headers))
    return refuse(std::move(*why));
  message.eager(true);
  state = message.is_done() ? State::kComplete : State::kBody;
  return state == State::kBody && !input.empty() ? parse_body(input) : state;
}

RequestParser::State RequestParser::Parts::parse_body(std::string& input) {
  if (input.empty() || (message.chunked() && input.size() < kMinChunkBytes)) return state;
  BeastError error;
  input.erase(0, message.put({input.data(), input.size()}, error));
  if (error && error != beast::http::error::need_more) return refuse(refusal_of_error(error, limits));
  if (message.is_done()) return state = State::kComplete;
  if (message.chunked() && input.size() > kMaxChunkHead) {
    return refuse({400, str("a chunk's head or the trailers are longer than ", kMaxChunkHead, " bytes")});
  }
  return state;
}

RequestParser::RequestParser(const HttpLimits& limits) : parts_(new Parts{.limits = limits}) {}
RequestParser::~RequestParser() = default;

RequestParser::State RequestParser::parse(std::string& input) {
  switch (parts_->state) {
    case State::kHead: return parts_->parse_head(input);
    case State::kBody: return parts_->parse_body(input);
    case State::kComplete:
    case State::kRefused: break;
  }
  return parts_->state;
}

const HttpRefusal& RequestParser::refusal() const { return parts_->refusal; }
HttpRequest& RequestParser::request() { return parts_->message.request; }
bool RequestParser::is_http11() const { return parts_->message.is_http11; }
bool RequestParser::keeps_alive() const { return parts_->message.keep_alive(); }
bool RequestParser::expects_continue() const {
  return is_http11() && equals(parts_->message.request, "expect", "100-continue");
}

}  // namespace headrace
