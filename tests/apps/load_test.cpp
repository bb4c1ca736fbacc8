// Parts of `headrace bench serve` and `bench agent`: statistics, texts, bodies and addresses.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "apps/load_request.h"
#include "apps/load_stats.h"
#include "apps/load_text.h"
#include "apps/server_url.h"
#include "apps/sse_reader.h"
#include "headrace/core/error.h"

namespace headrace::app {
namespace {

using Texts = std::vector<std::string>;

RequestResult answer(double begin_s, Texts::size_type tokens, double first_s, double step_s) {
  RequestResult r{
      .status = 200, .begin_s = begin_s, .prompt_tokens = 10, .output_tokens = static_cast<int64_t>(tokens)};
  for (size_t i = 0; i < tokens; ++i) r.pieces_s.push_back(begin_s + first_s + step_s * static_cast<double>(i));
  r.end_s = r.pieces_s.back();
  return r;
}

std::string goodput_failure(const std::string& bound) {
  try {
    goodput_of(Texts{bound});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LoadStats, PercentilesLieBetweenTheNearestValues) {
  const std::array values = {1.0, 2.0, 3.0, 4.0, 10.0};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 3);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 7.6);  // as numpy.percentile
  EXPECT_DOUBLE_EQ(percentile(values, 100), 10);
  EXPECT_EQ(percentile({}, 50), 0);
  EXPECT_EQ(percentile(std::array{5.0}, 99), 5);
}

TEST(LoadStats, DistributionsAreInMilliseconds) {
  const Distribution d = Distribution::of({0.004, 0.001, 0.003, 0.002});
  EXPECT_DOUBLE_EQ(d.mean, 2.5);
  EXPECT_DOUBLE_EQ(d.p50, 2.5);
  EXPECT_DOUBLE_EQ(d.p90, 3.7);
  EXPECT_DOUBLE_EQ(Distribution::of({}).p99, 0);
}

TEST(LoadStats, TimesOfARequest) {
  const RequestResult r = answer(2, 5, 0.5, 0.1);
  EXPECT_DOUBLE_EQ(r.ttft_s(), 0.5);
  EXPECT_NEAR(r.tpot_s(), 0.1, 1e-12);
  EXPECT_NEAR(r.e2el_s(), 0.9, 1e-12);
  EXPECT_EQ(answer(2, 1, 0.5, 0).tpot_s(), 0);
}

TEST(LoadStats, OnlyCompleteRequestsCount) {
  std::vector<RequestResult> results = {answer(0, 3, 0.1, 0.1), answer(1, 5, 0.5, 0.1), answer(2, 2, 2.0, 0.1)};
  results.push_back({.status = 429, .error = "status 429: full", .begin_s = 3, .end_s = 3.2});
  results.push_back({.status = 429, .error = "status 429: full", .begin_s = 3.5, .end_s = 3.6});
  results.push_back({.status = 0, .error = "refused", .begin_s = 4, .end_s = 5});
  const LoadSummary s = summary_of(results, Goodput{.ttft_ms = 600, .tpot_ms = 150});
  EXPECT_EQ(s.completed, 3);
  EXPECT_EQ(s.failed, 3);
  EXPECT_EQ(s.errors, (std::map<int, int64_t>{{0, 1}, {429, 2}}));
  EXPECT_EQ(s.input_tokens, 30);
  EXPECT_EQ(s.output_tokens, 10);
  EXPECT_DOUBLE_EQ(s.duration_s, 5);
  EXPECT_DOUBLE_EQ(s.offered_rate, 1.5);  // six until the last began
  EXPECT_DOUBLE_EQ(s.throughput, 0.6);
  EXPECT_DOUBLE_EQ(s.output_throughput, 2);
  EXPECT_DOUBLE_EQ(s.goodput.value(), 0.4);  // the first token of one came too late
  EXPECT_NEAR(s.ttft.p50, 500, 1e-9);
  EXPECT_NEAR(s.itl.mean, 100, 1e-9);
  EXPECT_FALSE(summary_of(results, std::nullopt).goodput);
}

TEST(LoadStats, GoodputBoundsEachTime) {
  const RequestResult r = answer(0, 5, 0.5, 0.1);  // 500 ms, then 100 ms each
  EXPECT_TRUE(goodput_of(Texts{}).holds(r));
  EXPECT_TRUE(goodput_of(Texts{"ttft:501", "tpot:101", "e2el:901"}).holds(r));
  EXPECT_FALSE(goodput_of(Texts{"ttft:499"}).holds(r));
  EXPECT_FALSE(goodput_of(Texts{"tpot:99"}).holds(r));
  EXPECT_FALSE(goodput_of(Texts{"e2el:899"}).holds(r));
  RequestResult failed = r;
  failed.error = "the stream ended";
  EXPECT_FALSE(goodput_of(Texts{}).holds(failed));
}

TEST(LoadStats, GoodputRefusesWhatIsNoBound) {
  EXPECT_EQ(goodput_failure("itl:5"), "--goodput: is 'itl:5', expected ttft:MS, tpot:MS or e2el:MS");
  for (const char* bound : {"ttft:", "ttft", "ttft:0", "ttft:-1", "ttft:5ms", "ttft:inf", "ttft:nan"}) {
    EXPECT_EQ(goodput_failure(bound),
              str("--goodput: is '", bound, "', expected milliseconds above 0 behind the colon"));
  }
}

TEST(LoadStats, JsonHasTheNumbers) {
  const std::string json = summary_json(summary_of(std::vector{answer(0, 3, 0.1, 0.2)}, std::nullopt));
  EXPECT_NE(json.find(R"("completed": 1, "failed": 0, "errors": {})"), json.npos) << json;
  EXPECT_NE(json.find(R"("request_goodput": null)"), json.npos) << json;
  EXPECT_NE(json.find(R"("mean_ttft_ms": 100.000, "p50_ttft_ms": 100.000)"), json.npos) << json;
  EXPECT_NE(json.find(R"("p99_itl_ms": 200.000)"), json.npos) << json;
}

// Events of `stream` that is cut into parts of `size` bytes.
Texts events_of(std::string_view stream, size_t size) {
  SseReader reader;
  Texts events;
  for (; !stream.empty(); stream.remove_prefix(std::min(size, stream.size())))
    reader.push(stream.substr(0, size), [&events](std::string_view data) { events.emplace_back(data); });
  return events;
}

TEST(SseReader, ReadsEventsThatAreCutAnywhere) {
  constexpr std::string_view kStream =
      ": ping\n\nevent: x\ndata: one\n\ndata:two\r\ndata: lines\r\n\r\ndata: a\rdata:  b\r\rid: 7\n\ndata: "
      "left";
  for (size_t size = 1; size < 20; ++size) {
    EXPECT_EQ(events_of(kStream, size), (Texts{"one", "two\nlines", "a\n b"})) << size;
  }
}

TEST(RandomWords, FollowTheirSeed) {
  EXPECT_EQ(RandomWords(1).text(50), RandomWords(1).text(50));
  EXPECT_NE(RandomWords(1).text(50), RandomWords(2).text(50));
  const std::string text = RandomWords(3).text(7);
  EXPECT_EQ(std::ranges::count(text, ' '), 7);
}

TEST(TokenRatio, SeparatesWordsFromWhatATemplateAdds) {
  const TokenRatio ratio({.words = 16, .tokens = 42}, {.words = 144, .tokens = 298});  // 10 and 2 for each word
  EXPECT_DOUBLE_EQ(ratio.per_word(), 2);
  EXPECT_EQ(ratio.words_for(100), 50);
  EXPECT_EQ(ratio.words_for_prompt(110), 50);
  EXPECT_EQ(ratio.words_for_prompt(3), 1);
  EXPECT_EQ(TokenRatio({16, 0}, {144, 0}).words_for(100), 100);  // a server that does not count
}

TEST(LoadHistory, GrowsAsTextOrAsMessages) {
  LoadHistory history;
  history.add_user("a\n");
  EXPECT_EQ(history.body(kCompletionsPath, {.model = "m", .max_tokens = 3}),
            R"({"model": "m", "prompt": "a\n", "max_tokens": 3, "temperature": 0, "ignore_eos": true, )"
            R"("stream": true, "stream_options": {"include_usage": true}})");
  history.add_answer("b");
  history.add_user("c");
  EXPECT_NE(history.body(kCompletionsPath, {}).find(R"("prompt": "a\nbc")"), std::string::npos);
  EXPECT_NE(history.body(kChatPath, {})
                .find(R"("messages": [{"role": "user", "content": "a\n"}, {"role": "assistant", )"
                      R"("content": "b"}, {"role": "user", "content": "c"}])"),
            std::string::npos);
  EXPECT_NE(history.body(kChatPath, {.only_letters = true}).find(R"("logit_bias": {"97": 100, )"), std::string::npos);
}

void expect_url(const std::string& text, const std::string& host, const std::string& port, const std::string& prefix) {
  const ServerUrl url = server_url(text);
  EXPECT_EQ(url.host, host) << text;
  EXPECT_EQ(url.port, port) << text;
  EXPECT_EQ(url.prefix, prefix) << text;
}

TEST(ServerUrl, HasHostPortAndPrefix) {
  expect_url("http://127.0.0.1:8000", "127.0.0.1", "8000", "");
  expect_url("http://localhost", "localhost", "80", "");
  expect_url("http://[::1]:9/v1/", "::1", "9", "");
  expect_url("http://[::1]", "::1", "80", "");
  expect_url("http://host:8000/api/v1", "host", "8000", "/api");
}

TEST(ServerUrl, RefusesOthers) {
  for (const char* text : {"", "127.0.0.1:8000", "https://host", "http://", "http://:80",
                           "http://host:", "http://host:x", "http://[::1", "http://host:80:80"}) {
    EXPECT_THROW(server_url(text), Error) << text;
  }
}

}  // namespace
}  // namespace headrace::app
