// Random data through the event writer and a reader as the standard describes it.
#include <algorithm>
#include <string>
#include <vector>

#include "headrace/http/sse.h"
#include "support/fuzz.h"
#include "support/random.h"

namespace headrace::testing_support {
namespace {

// Source: WHATWG HTML, "Interpreting an event stream". Lines end in CRLF, LF or CR.
std::vector<std::string> lines_of(std::string_view stream) {
  std::vector<std::string> out(1);
  for (size_t i = 0; i < stream.size(); ++i) {
    if (stream[i] != '\r' && stream[i] != '\n') {
      out.back() += stream[i];
      continue;
    }
    if (stream.substr(i).starts_with("\r\n")) ++i;
    out.emplace_back();
  }
  out.pop_back();  // without an end it is no line
  return out;
}

// Returns the data of each event; "?" for a field that the writer has no use for.
std::vector<std::string> events_of(std::string_view stream) {
  std::vector<std::string> out;
  std::string data;
  for (std::string line : lines_of(stream)) {
    if (line.empty()) {
      if (!data.empty()) out.push_back(data.substr(0, data.size() - 1));
      data.clear();
    } else if (line.starts_with("data:")) {
      line.erase(0, line.starts_with("data: ") ? 6 : 5);
      data += line + "\n";
    } else if (!line.starts_with(':')) {
      out.emplace_back("?");
    }
  }
  return out;
}

std::string with_lf(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with("\r\n")) continue;
    out += text[i] == '\r' ? '\n' : text[i];
  }
  return out;
}

std::string wrong_with(uint64_t seed) {
  Random random(seed);
  std::string stream;
  std::vector<std::string> meant;
  for (int64_t i = random.below(6); i > 0; --i) {
    std::string text;
    for (int64_t piece = random.below(8); piece > 0; --piece) {
      text += pick<const char*>(random, {"\n", "\r", "\r\n", "data: ", "event: x", ":", " ", "{\"a\":1}", "\xc3\xa9",
                                         "\xff", "id:", "retry: 1"});
    }
    if (one_in(random, 4)) {
      stream += sse_comment(text);
      continue;
    }
    stream += sse_event(text);
    meant.push_back(with_lf(text));
  }
  return events_of(stream) == meant ? "" : "the reader sees other events";
}

}  // namespace
}  // namespace headrace::testing_support

int main(int argc, char** argv) {
  using namespace headrace::testing_support;
  return fuzz_main("sse_fuzz", argc, argv, [](uint64_t seed, const FuzzArguments&) {
    return FuzzCase{.summary = "a thousand streams", .wrong = [seed] {
                      for (uint64_t i = 0; i < 1000; ++i) {
                        if (std::string wrong = wrong_with(seed * 1000 + i); !wrong.empty())
                          return headrace::str("draw ", i, ": ", wrong);
                      }
                      return std::string();
                    }};
  });
}
