// Random requests, valid and mutated, in random pieces: a valid one is read as it was meant, and any bytes mean the
// same however they are cut.
#include <algorithm>
#include <string>
#include <vector>

#include "headrace/http/request_parser.h"
#include "support/fuzz.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

using State = RequestParser::State;

constexpr HttpLimits kFuzzLimits{.max_header_bytes = 2000, .max_headers = 12, .max_body_bytes = 3000};
constexpr size_t kMostWaiting = 8 << 10;  // of chunks' heads: the largest that the parser leaves

struct MeantRequest {
  std::string bytes;
  HttpRequest request;
};

std::string random_text(Random& random, int64_t most, std::string_view letters) {
  std::string out(static_cast<size_t>(random.below(most + 1)), ' ');
  for (char& c : out) c = letters[static_cast<size_t>(random.below(std::ssize(letters)))];
  return out;
}

std::string random_bytes(Random& random, int64_t most) {
  std::string out(static_cast<size_t>(random.below(most + 1)), ' ');
  for (char& c : out) c = static_cast<char>(random.below(256));
  return out;
}

std::string in_chunks(Random& random, std::string_view body) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  while (!body.empty()) {
    const auto size = static_cast<size_t>(1 + random.below(std::min<int64_t>(std::ssize(body), 255)));
    if (one_in(random, 4)) out += "00";
    out += {kDigits[size / 16], kDigits[size % 16]};
    if (one_in(random, 4)) out += ";name=\"a;b\"";
    out += str("\r\n", body.substr(0, size), "\r\n");
    body.remove_prefix(size);
  }
  return out + (one_in(random, 4) ? "0\r\nTrailer: a\r\n\r\n" : "0\r\n\r\n");
}

MeantRequest random_request(Random& random) {
  MeantRequest out;
  HttpRequest& r = out.request;
  r.method = pick<const char*>(random, {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"});
  r.path = "/" + random_text(random, 20, "abcXYZ019/-._~ %é");
  r.query = random_text(random, 20, "abc=&%20+?/");
  std::string target;
  for (const char c : r.path) {
    constexpr std::string_view kPlain = "abcXYZ019/-._~", kDigits = "0123456789ABCDEF";
    const auto byte = static_cast<uint8_t>(c);
    kPlain.find(c) != kPlain.npos ? void(target += c) : void(target += {'%', kDigits[byte / 16], kDigits[byte % 16]});
  }
  if (!r.query.empty()) target += "?" + r.query;
  out.bytes = str(one_in(random, 8) ? "\r\n" : "", r.method, " ", target, " HTTP/1.1\r\n");
  r.headers.emplace_back("host", "a");
  for (int64_t i = random.below(8); i > 0; --i) {
    r.headers.emplace_back("x-" + random_text(random, 8, "abc-_"),
                           str("v", random_text(random, 30, "ab ,;=\"\xc3\x9f"), "v"));
  }
  r.body = random_bytes(random, one_in(random, 2) ? 0 : 1000);
  const bool is_chunked = one_in(random, 2);
  if (is_chunked) r.headers.emplace_back("transfer-encoding", "chunked");
  if (!is_chunked && (!r.body.empty() || one_in(random, 2)))
    r.headers.emplace_back("content-length", str(r.body.size()));
  for (const auto& [name, value] : r.headers) out.bytes += str(name, ":", one_in(random, 2) ? " " : "", value, " \r\n");
  out.bytes += str("\r\n", is_chunked ? in_chunks(random, r.body) : r.body);
  return out;
}

// Damages that have deceived other parsers, and any others.
void mutate(Random& random, std::string& bytes) {
  const auto at = [&] { return static_cast<size_t>(random.below(std::ssize(bytes) + 1)); };
  switch (random.below(5)) {
    case 0:
      bytes.insert(at(), pick<const char*>(random, {"\r\n",
                                                    "\n",
                                                    "\r",
                                                    "\r\n\r\n",
                                                    " ",
                                                    "\t",
                                                    ":",
                                                    "0\r\n\r\n",
                                                    "%00",
                                                    "\x7f",
                                                    "Content-Length: 3\r\n",
                                                    "Transfer-Encoding: chunked\r\n",
                                                    "-",
                                                    "+",
                                                    "FFFFFFFFFFFFFFFF\r\n",
                                                    "Host: b\r\n",
                                                    "\r\n ",
                                                    "HTTP/1.0",
                                                    ",",
                                                    ";"}));
      return;
    case 1: bytes.insert(at(), random_bytes(random, 8)); return;
    case 2: bytes.erase(at(), static_cast<size_t>(random.below(8))); return;
    case 3:
      if (!bytes.empty()) bytes[std::min(at(), bytes.size() - 1)] = static_cast<char>(random.below(256));
      return;
    default: bytes.insert(at(), bytes.substr(at(), static_cast<size_t>(random.below(100)))); return;
  }
}

struct ParsedCase {
  std::vector<HttpRequest> requests = {};
  State last = State::kHead;
  std::string rest = {};
};

// Parses one request behind the other; gives the parser pieces of random sizes, at most `most_piece`.
std::string parse(Random& random, std::string_view bytes, int64_t most_piece, ParsedCase& out) {
  auto parser = std::make_unique<RequestParser>(kFuzzLimits);
  std::string input;
  while (true) {
    out.last = parser->parse(input);
    const size_t waiting = std::max(kMostWaiting, kFuzzLimits.max_header_bytes) + static_cast<size_t>(most_piece);
    if (out.last != State::kComplete && out.last != State::kRefused && input.size() > waiting)
      return "it keeps what it cannot use";
    if (parser->request().body.size() > kFuzzLimits.max_body_bytes) return "a body beyond the limit";
    if (out.last == State::kRefused) break;
    if (out.last == State::kComplete) {
      if (std::ssize(parser->request().headers) > kFuzzLimits.max_headers) return "more headers than the limit";
      out.requests.push_back(parser->request());
      parser = std::make_unique<RequestParser>(kFuzzLimits);
      if (!input.empty()) continue;
    }
    if (bytes.empty()) break;
    const auto size = static_cast<size_t>(1 + random.below(std::min<int64_t>(most_piece, std::ssize(bytes))));
    input += bytes.substr(0, size);
    bytes.remove_prefix(size);
  }
  out.rest = input;
  return {};
}

bool are_equal(const HttpRequest& a, const HttpRequest& b) {
  return a.method == b.method && a.path == b.path && a.query == b.query && a.headers == b.headers && a.body == b.body;
}

// The last, incomplete request may have a byte more or less of its body: the parser waits for whole ends of chunks.
bool are_equal(const ParsedCase& a, const ParsedCase& b) {
  return a.last == b.last && a.requests.size() == b.requests.size() &&
         std::ranges::equal(a.requests, b.requests, [](const auto& x, const auto& y) { return are_equal(x, y); });
}

std::string wrong_with(uint64_t seed) {
  Random random(seed);
  std::vector<MeantRequest> meant(static_cast<size_t>(1 + random.below(3)));
  std::string bytes;
  for (MeantRequest& one : meant) bytes += (one = random_request(random)).bytes;
  const bool is_valid = one_in(random, 3);
  if (!is_valid) {
    for (int64_t i = 1 + random.below(4); i > 0; --i) mutate(random, bytes);
    bytes += std::string(16, 'z');  // so that nothing waits for an end
  }
  ParsedCase whole, cut, letters;
  for (std::string wrong :
       {parse(random, bytes, 1 << 20, whole), parse(random, bytes, 40, cut), parse(random, bytes, 1, letters)}) {
    if (!wrong.empty()) return wrong;
  }
  if (!are_equal(whole, cut) || !are_equal(whole, letters)) return "its meaning depends on how it is cut";
  if (!is_valid) return {};
  if (whole.requests.size() != meant.size())
    return str("it read ", whole.requests.size(), " of ", meant.size(), " requests");
  for (size_t i = 0; i < meant.size(); ++i) {
    if (!are_equal(whole.requests[i], meant[i].request)) return str("request ", i, " is another one");
  }
  return {};
}

}  // namespace
}  // namespace headrace::testing_support

// A case is a hundred draws: one alone takes microseconds.
int main(int argc, char** argv) {
  using namespace headrace::testing_support;
  return fuzz_main("http_fuzz", argc, argv, [](uint64_t seed, const FuzzArguments&) {
    return FuzzCase{.summary = "a thousand requests", .wrong = [seed] {
                      for (uint64_t i = 0; i < 1000; ++i) {
                        if (std::string wrong = wrong_with(seed * 1000 + i); !wrong.empty())
                          return headrace::str("draw ", i, ": ", wrong);
                      }
                      return std::string();
                    }};
  });
}
