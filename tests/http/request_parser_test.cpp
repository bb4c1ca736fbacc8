#include "headrace/http/request_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace headrace {
namespace {

using State = RequestParser::State;

struct ParsedBytes {
  State state = State::kHead;
  HttpRefusal refusal = {};
  HttpRequest request = {};
  bool is_http11 = false, keeps_alive = false;
  std::string rest = {};
  size_t most_waiting = 0;  // bytes that the parser left to the connection
};

// Gives the parser `bytes` in pieces.
ParsedBytes parse_pieces(std::string_view bytes, size_t piece_size, const HttpLimits& limits = {}) {
  RequestParser parser(limits);
  ParsedBytes out;
  std::string input;
  while (!bytes.empty() && (out.state == State::kHead || out.state == State::kBody)) {
    input += bytes.substr(0, piece_size);
    bytes.remove_prefix(std::min(piece_size, bytes.size()));
    out.state = parser.parse(input);
    out.most_waiting = std::max(out.most_waiting, input.size());
  }
  if (out.state == State::kBody || out.state == State::kComplete) {
    out.is_http11 = parser.is_http11(), out.keeps_alive = parser.keeps_alive();
  }
  out.refusal = parser.refusal(), out.request = parser.request(), out.rest = input + std::string(bytes);
  return out;
}

// A request means the same however it is cut; byte by byte, the answer comes as soon as it is certain.
ParsedBytes parse_all(std::string_view bytes, const HttpLimits& limits = {}) {
  ParsedBytes whole = parse_pieces(bytes, bytes.size(), limits);
  for (const size_t size : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{1000}}) {
    const ParsedBytes cut = parse_pieces(bytes, size, limits);
    EXPECT_EQ(cut.state, whole.state) << size;
    EXPECT_EQ(cut.refusal.status, whole.refusal.status) << size;
    EXPECT_EQ(cut.request.headers, whole.request.headers) << size;
    EXPECT_EQ(cut.request.path, whole.request.path) << size;
    if (whole.state != State::kComplete) continue;
    EXPECT_EQ(cut.request.body, whole.request.body) << size;
    EXPECT_EQ(cut.rest, whole.rest) << size;
  }
  return whole;
}

int refused_status(std::string_view bytes, const HttpLimits& limits = {}) {
  const ParsedBytes parsed = parse_all(bytes, limits);
  return parsed.state == State::kRefused ? parsed.refusal.status : 0;
}

std::string with_headers(std::string_view headers, std::string_view body = {}) {
  return str("POST / HTTP/1.1\r\nHost: a\r\n", headers, "\r\n", body);
}

std::string chunked(std::string_view body) { return with_headers("Transfer-Encoding: chunked\r\n", body); }

TEST(RequestParser, ReadsARequest) {
  const ParsedBytes parsed = parse_all(
      "\r\nPOST /v1/a%20b%2Fc?x=1&y=%20 HTTP/1.1\r\nHost: a:1\r\nX-Thing:  some value \t\r\nEmpty:\r\nContent-Length: "
      "5\r\n"
      "\r\nhelloGET ");
  EXPECT_EQ(parsed.state, State::kComplete);
  EXPECT_EQ(parsed.request.method, "POST");
  EXPECT_EQ(parsed.request.path, "/v1/a b/c");
  EXPECT_EQ(parsed.request.query, "x=1&y=%20");
  EXPECT_EQ(*parsed.request.header("x-thing"), "some value");
  EXPECT_EQ(*parsed.request.header("empty"), "");
  EXPECT_EQ(parsed.request.header("absent"), nullptr);
  EXPECT_EQ(parsed.request.body, "hello");
  EXPECT_EQ(parsed.rest, "GET ");
  EXPECT_TRUE(parsed.is_http11 && parsed.keeps_alive);
}

TEST(RequestParser, ReadsChunks) {
  const ParsedBytes parsed = parse_all(
      chunked("5\r\nhello\r\n0A;name=value;other=\"quoted; text\"\r\n0123456789\r\n000\r\nX-Trailer: a\r\n\r\nrest"));
  EXPECT_EQ(parsed.state, State::kComplete) << parsed.refusal.message;
  EXPECT_EQ(parsed.request.body, "hello0123456789");
  EXPECT_EQ(parsed.request.header("x-trailer"), nullptr);
  EXPECT_EQ(parse_all(chunked("0\r\nContent-Length: 5\r\n\r\nrest")).rest, "rest") << "a trailer has no say";
  EXPECT_EQ(parsed.rest, "rest");
  EXPECT_EQ(parse_all(chunked("0\r\n\r\n")).state, State::kComplete);
}

TEST(RequestParser, KnowsWhetherTheConnectionGoesOn) {
  const auto keeps = [](std::string_view version, std::string_view connection) {
    return parse_all(str("GET / ", version, "\r\nHost: a\r\nConnection: ", connection, "\r\n\r\n")).keeps_alive;
  };
  EXPECT_TRUE(keeps("HTTP/1.1", "keep-alive"));
  EXPECT_FALSE(keeps("HTTP/1.1", "close"));
  EXPECT_FALSE(keeps("HTTP/1.1", "foo, Close"));
  EXPECT_TRUE(keeps("HTTP/1.0", "Keep-Alive"));
  EXPECT_FALSE(keeps("HTTP/1.0", "foo"));
}

TEST(RequestParser, ReadsTargets) {
  const auto path = [](std::string_view target) {
    return parse_all(str("GET ", target, " HTTP/1.0\r\n\r\n")).request.path;
  };
  EXPECT_EQ(path("http://host:80/a?b"), "/a");
  EXPECT_EQ(path("http://host"), "/");
  EXPECT_EQ(path("/%e2%82%AC"), "/€");
  for (const std::string_view target :
       {"a", "*", "/%", "/%4", "/%zz", "/%00", "/%+1", "/%-1", "http://host?b", "host:80"}) {
    EXPECT_EQ(refused_status(str("GET ", target, " HTTP/1.1\r\nHost: a\r\n\r\n")), 400) << target;
  }
  EXPECT_EQ(parse_all("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").request.path, "*");
}

TEST(RequestParser, RefusesWhatIsNoRequest) {
  using namespace std::string_literals;
  EXPECT_EQ(refused_status("GET /\r\n"), 400) << "HTTP/0.9";
  EXPECT_EQ(refused_status("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  EXPECT_EQ(refused_status("GET / HTTP/1.2\r\n\r\n"), 505);
  EXPECT_EQ(refused_status("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s), 400) << "TLS";
  EXPECT_EQ(refused_status("GET / HTTP/1.1\nHost: a\n\n"), 400) << "lines end in CRLF";
  EXPECT_EQ(refused_status("\n\n"), 400);
  EXPECT_EQ(refused_status(" / HTTP/1.1\r\n"), 400);
  EXPECT_EQ(refused_status("GET  HTTP/1.1\r\n"), 400);
  EXPECT_EQ(refused_status("GET / a HTTP/1.1\r\n"), 400);
  EXPECT_EQ(refused_status("GET / HTTP/1.1 \r\n"), 400);
  EXPECT_EQ(refused_status("GET / http/1.1\r\n"), 400);
  EXPECT_EQ(refused_status("GE\x80T / HTTP/1.1\r\n"), 400);
  EXPECT_EQ(refused_status("get / HTTP/1.1\r\n"), 501) << "methods have a case";
  EXPECT_EQ(refused_status("BREW / HTTP/1.1\r\n"), 501);
  EXPECT_EQ(refused_status("CONNECT a:80 HTTP/1.1\r\n"), 501);
  EXPECT_EQ(refused_status("BREW / HTTP/1.1\r\n"), 501);
}

TEST(RequestParser, RefusesMalformedHeaders) {
  using namespace std::string_literals;
  EXPECT_EQ(refused_status("GET / HTTP/1.1\r\n\r\n"), 400) << "no Host";
  EXPECT_EQ(refused_status(with_headers("Host: b\r\n")), 400);
  EXPECT_EQ(refused_status(with_headers("No colon\r\n")), 400);
  EXPECT_EQ(refused_status(with_headers("Space : a\r\n")), 400);
  EXPECT_EQ(refused_status(with_headers(": a\r\n")), 400);
  EXPECT_EQ(refused_status(with_headers("Fold: a\r\n b\r\n")), 400);
  EXPECT_EQ(refused_status(with_headers("Fold:\r\n\tb\r\n")), 400);
  EXPECT_EQ(refused_status(with_headers(" Before: a\r\n")), 400);
  EXPECT_EQ(refused_status(with_headers("Nul: a\0b\r\n"s)), 400);
  EXPECT_EQ(refused_status(with_headers("Cr: a\rb\r\n")), 400);
  EXPECT_EQ(refused_status(with_headers("Lf: a\nb: c\r\n")), 400);
  EXPECT_EQ(refused_status(with_headers("Expect: 200-ok\r\nContent-Length: 1\r\n")), 417);
}

// Two programs that disagree about where a body ends can be made to see different requests.
TEST(RequestParser, RefusesBodiesOfTwoLengths) {
  for (const std::string_view headers :
       {"Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 5\r\n", "Content-Length: 5,6\r\n", "Content-Length: +5\r\n", "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n", "Content-Length: 5 5\r\n", "Content-Length: \r\n",
        "Content-Length: 18446744073709551616\r\n", "Content-Length: 5;a\r\n", "Content-Length: 5,\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"}) {
    EXPECT_EQ(refused_status(with_headers(headers, "hello")), 400) << headers;
  }
  for (const std::string_view coding : {"chunked, chunked", "gzip, chunked", "identity", "xchunked", "chunked;a=b",
                                        "\"chunked\"", "chunked, identity", "\vchunked"}) {
    const int status = refused_status(with_headers(str("Transfer-Encoding: ", coding, "\r\n"), "0\r\n\r\n"));
    EXPECT_TRUE(status == 501 || status == 400) << coding << ": " << status;
  }
  EXPECT_EQ(refused_status(with_headers("Transfer-Encoding : chunked\r\n")), 400);
  EXPECT_EQ(refused_status("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
}

TEST(RequestParser, RefusesMalformedChunks) {
  for (const std::string_view body :
       {"-2\r\nab\r\n0\r\n\r\n", "+5\r\nhello\r\n0\r\n\r\n", "10000000000000000\r\n\r\n", "FFFFFFFFFFFFFFFF\r\nhello",
        "8000000000000000\r\nhello", "0x5\r\nhello\r\n\r\n", "\r\nhello\r\n", "5 \r\nhello\r\n", " 5\r\nhello\r\n",
        "5\nhello\r\n0\r\n\r\n", "5\r\nhello0\r\n\r\n", "5\r\nhelloxx0\r\n\r\n", "g\r\nhello\r\n",
        "5;a\nhello\r\n0\r\n\r\n", "5;a\x01\r\nhello\r\n0\r\n\r\n", "5,5\r\nhello\r\n", "5\rhello\r\n0\r\n\r\n",
        "0\r\nno colon\r\n\r\n", "5\r\nhello\r\n-0\r\n\r\n"}) {
    EXPECT_EQ(refused_status(chunked(body)), 400) << body;
  }
  EXPECT_EQ(refused_status(chunked("7FFFFFFFFFFFFFFF\r\nhello")), 413);
}

TEST(RequestParser, BoundsHeads) {
  const HttpLimits limits{.max_header_bytes = 2000, .max_headers = 10};
  std::string many;
  for (int i = 0; i < 10; ++i) many += "a: b\r\n";
  EXPECT_EQ(refused_status(with_headers(many), limits), 431) << "with Host they are eleven";
  EXPECT_EQ(parse_all(with_headers(many.substr(6)), limits).state, State::kComplete);
  EXPECT_EQ(refused_status(with_headers(str("Long: ", std::string(3000, 'a'), "\r\n")), limits), 431);
  EXPECT_EQ(refused_status(with_headers(str("Endless: ", std::string(3000, 'a'))), limits), 431);
  EXPECT_EQ(refused_status(str("GET /", std::string(3000, 'a'), " HTTP/1.1\r\nHost: a\r\n\r\n"), limits), 414);
  EXPECT_EQ(refused_status(str("GET /", std::string(3000, 'a')), limits), 414);
  EXPECT_LE(parse_pieces(str("GET /", std::string(9000, 'a')), 100, limits).most_waiting, 2100U);
  // Beast counts the bytes of each piece anew.
  std::string endless = "GET / HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 9000; ++i) endless += "a: b\r\n";
  EXPECT_EQ(refused_status(endless, {}), 431);
  EXPECT_LE(parse_pieces(endless, 6, {}).most_waiting, HttpLimits().max_header_bytes + 6);
}

TEST(RequestParser, BoundsBodies) {
  const HttpLimits limits{.max_body_bytes = 100};
  EXPECT_EQ(refused_status(with_headers("Content-Length: 101\r\n"), limits), 413) << "before the body";
  EXPECT_EQ(refused_status(with_headers("Content-Length: 18446744073709551615\r\n"), limits), 413);
  EXPECT_EQ(parse_all(with_headers("Content-Length: 100\r\n", std::string(100, 'a')), limits).state, State::kComplete);
  std::string body;
  for (int i = 0; i < 10; ++i) body += str("a\r\n", std::string(10, 'b'), "\r\n");
  EXPECT_EQ(parse_all(chunked(body + "0\r\n\r\n"), limits).request.body.size(), 100U);
  EXPECT_EQ(refused_status(chunked(body + "1\r\nc"), limits), 413);
}

TEST(RequestParser, BoundsWhatSurroundsChunks) {
  EXPECT_EQ(refused_status(chunked(str("5;a=\"", std::string(20'000, 'b')))), 400);
  std::string trailers = "0\r\n";
  for (int i = 0; i < 5'000; ++i) trailers += "a: b\r\n";
  EXPECT_EQ(refused_status(chunked(trailers)), 400);
  EXPECT_LE(parse_pieces(chunked(trailers), 100).most_waiting, 10'000U);
  std::string ones;
  for (int i = 0; i < 100'000; ++i) ones += "1\r\na\r\n";
  const ParsedBytes parsed = parse_pieces(chunked(ones + "0\r\n\r\n"), 65536);
  EXPECT_EQ(parsed.request.body.size(), 100'000U);
  EXPECT_EQ(parse_all(chunked("5\r\nhel")).state, State::kBody);
  EXPECT_EQ(parse_all(chunked("5\r\nhello\r\n")).state, State::kBody) << "the last chunk is missing";
}

TEST(RequestParser, SeesWhoWaitsToSendABody) {
  RequestParser parser({});
  std::string input = with_headers("Expect: 100-Continue\r\nContent-Length: 5\r\n");
  EXPECT_EQ(parser.parse(input), State::kBody);
  EXPECT_TRUE(parser.expects_continue());
  input = "hello";
  EXPECT_EQ(parser.parse(input), State::kComplete);
}

}  // namespace
}  // namespace headrace
