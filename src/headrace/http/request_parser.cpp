#include "headrace/http/request_parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>
#include <optional>
#include <string_view>

#include "headrace/core/printable.h"
#include "headrace/http/body_reader.h"
#include "headrace/http/request_target.h"

namespace headrace {
namespace {

namespace beast = boost::beast;
using BeastError = boost::system::error_code;

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

// The request of a head that Beast accepts.
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

}  // namespace

// Beast's grammar of heads; it fills a request.
class RequestHead final : public beast::http::basic_parser<true> {
 public:
  explicit RequestHead(HttpRequest& request) : request_(request) {
    body_limit(boost::none);
    header_limit(std::numeric_limits<uint32_t>::max());  // it counts a head that comes in pieces anew with each piece
  }
  bool is_http11 = false;

 private:
  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view target, int version,
                       BeastError& error) override {
    is_http11 = version == 11;
    std::optional<RequestTarget> parts = headrace::parse_target({target.data(), target.size()});
    if (!parts) {
      error = beast::http::error::bad_target;
      return;
    }
    request_.method = std::string(method);
    request_.path = std::move(parts->path);
    request_.query = std::move(parts->query);
  }
  void on_field_impl(beast::http::field, beast::string_view name, beast::string_view value, BeastError&) override {
    request_.headers.emplace_back(lower_case({name.data(), name.size()}), std::string(value));
  }
  void on_header_impl(BeastError&) override {}
  void on_finish_impl(BeastError&) override {}
  // A head alone has none of these.
  void on_response_impl(int, beast::string_view, int, BeastError&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, BeastError&) override {}
  std::size_t on_body_impl(beast::string_view, BeastError&) override { return 0; }
  void on_chunk_header_impl(std::uint64_t, beast::string_view, BeastError&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, beast::string_view, BeastError&) override { return 0; }

  HttpRequest& request_;
};

struct RequestParser::Parts {
  HttpLimits limits;
  HttpRequest request = {};
  bool is_http11 = false, keeps_alive = false;
  std::optional<BodyReader> body = {};
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
  State refuse_long_body() {
    return refuse({413, str("the request's body is longer than ", limits.max_body_bytes, " bytes")});
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
  if (end >= limits.max_header_bytes) return refuse_long_head();
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
  const size_t size = end == input.npos ? input.size() : end + 4;
  if (size > limits.max_header_bytes) return refuse_long_head();
  if (end != input.npos) return take_head(input, size);
  scanned = input.size() - std::min<size_t>(input.size(), 3);
  return State::kHead;
}

RequestParser::State RequestParser::Parts::take_head(std::string& input, size_t size) {
  if (!has_strict_lines({input.data(), size})) return refuse({400, "a header is folded or does not end in CRLF"});
  RequestHead head(request);
  BeastError error;
  head.put({input.data(), size}, error);
  if (error) return refuse({400, str("the request is malformed: ", error.message())});
  input.erase(0, size);
  is_http11 = head.is_http11;
  keeps_alive = head.keep_alive();
  if (auto why = refusal_of_head(request, is_http11, limits.max_headers)) return refuse(std::move(*why));
  const uint64_t length = head.content_length().value_or(0);
  if (length > limits.max_body_bytes) return refuse_long_body();
  if (!head.chunked() && length == 0) return state = State::kComplete;
  body = head.chunked() ? BodyReader::in_chunks() : BodyReader(length);
  return parse_body(input);
}

RequestParser::State RequestParser::Parts::parse_body(std::string& input) {
  switch (body->read(input, request.body, limits.max_body_bytes)) {
    case BodyReader::Result::kMore: return state = State::kBody;
    case BodyReader::Result::kDone: return state = State::kComplete;
    case BodyReader::Result::kTooLong: return refuse_long_body();
    case BodyReader::Result::kBad: break;
  }
  return refuse({400, "a chunk of the body is malformed, or longer with its extensions and trailers than allowed"});
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
HttpRequest& RequestParser::request() { return parts_->request; }
bool RequestParser::is_http11() const { return parts_->is_http11; }
bool RequestParser::keeps_alive() const { return parts_->keeps_alive; }
bool RequestParser::expects_continue() const {
  return is_http11() && equals(parts_->request, "expect", "100-continue");
}

}  // namespace headrace
