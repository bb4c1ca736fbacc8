// The server without sockets: routes, keys, queue, streams, and what ends them.
#include "headrace/serve/server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <string>

#include "headrace/weights/config_file.h"
#include "serving.h"

namespace headrace {
namespace {

using testing_support::FakeExchange;
using testing_support::Serving;

JsonValue json_of(const std::string& text) { return JsonValue::parse(text, "response"); }

std::string error_of(const FakeExchange& exchange, const char* member = "message") {
  const JsonValue error = json_of(exchange.body()).at("error");
  const JsonValue* value = error.find(member);
  return value == nullptr || value->is_null() ? "" : value->as_string();
}

// The texts of a stream's pieces, and its last one.
struct Stream {
  std::string text, last;
  int num_pieces = 0;
};
Stream stream_of(const std::string& body) {
  Stream stream;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    stream.last = body.substr(at, end - at);
    at = end == std::string::npos ? body.size() : end + 2;
    if (!stream.last.starts_with("data: {")) continue;
    ++stream.num_pieces;
    const JsonValue piece = json_of(stream.last.substr(6));
    const JsonValue* choices = piece.find("choices");
    if (choices == nullptr || choices->as_array().empty()) continue;
    if (const JsonValue* text = choices->as_array().front().find("text")) stream.text += text->as_string();
  }
  return stream;
}

constexpr const char* kPrompt = R"("prompt": "abcdefghijklmnopqrstuvwxyz0123456789", "seed": 3, "ignore_eos": true)";
std::string long_body(std::string_view more = "") { return str("{", kPrompt, R"(, "max_tokens": 200)", more, "}"); }

TEST(Server, CompletesAPrompt) {
  Serving serving;
  serving.open();
  const auto reply = serving.post("/v1/completions", str("{", kPrompt, R"(, "max_tokens": 5})"));
  EXPECT_EQ(reply->status(), 200);
  EXPECT_EQ(reply->type(), "application/json");
  const JsonValue body = json_of(reply->body());
  EXPECT_EQ(body.at("id").as_string(), "cmpl-id-1");
  EXPECT_EQ(body.at("model").as_string(), "tiny");
  EXPECT_EQ(body.at("usage").at("prompt_tokens").as_int(), 36);
  EXPECT_EQ(body.at("usage").at("completion_tokens").as_int(), 5);
  EXPECT_EQ(body.at("choices").as_array().front().at("finish_reason").as_string(), "length");
  EXPECT_TRUE(serving.becomes_idle());
  const std::vector<RequestRecord> records = serving.records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].status, 200);
  EXPECT_EQ(records[0].usage->completion_tokens, 5);
  EXPECT_EQ(records[0].finish_reason, "length");
  EXPECT_TRUE(records[0].input.empty() && records[0].output.empty()) << "texts are not recorded unasked";
}

TEST(Server, StreamsTheSameTextInPieces) {
  Serving serving;
  serving.open();
  const std::string body = str("{", kPrompt, R"(, "max_tokens": 40)");
  const auto whole = serving.post("/v1/completions", body + "}");
  const auto reply =
      serving.post("/v1/completions", body + R"(, "stream": true, "stream_options": {"include_usage": true}})");
  EXPECT_EQ(reply->type(), "text/event-stream");
  EXPECT_EQ(reply->header("cache-control"), "no-cache");
  const Stream stream = stream_of(reply->body());
  EXPECT_EQ(stream.text, json_of(whole->body()).at("choices").as_array().front().at("text").as_string());
  EXPECT_GE(stream.num_pieces, 2);
  EXPECT_EQ(stream.last, "data: [DONE]");
  EXPECT_NE(reply->body().find(R"("prompt_tokens": 36)"), std::string::npos);
}

TEST(Server, WhileItLoadsOnlyHealthIsAnswered) {
  Serving serving;
  EXPECT_EQ(serving.get("/livez")->status(), 200);
  const auto health = serving.get("/health");
  EXPECT_EQ(health->status(), 503);
  EXPECT_EQ(health->body(), R"({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})");
  EXPECT_EQ(serving.get("/readyz")->status(), 503);
  const auto refused = serving.post("/v1/completions", long_body());
  EXPECT_EQ(refused->status(), 503);
  EXPECT_NE(refused->header("retry-after"), "");
  EXPECT_EQ(serving.get("/metrics")->status(), 200);
  serving.open();
  for (const char* path : {"/health", "/readyz", "/livez", "/v1/models", "/version"}) {
    EXPECT_EQ(serving.get(path)->status(), 200) << path;
  }
}

TEST(Server, EveryRouteButHealthNeedsAKey) {
  Serving serving({.api_keys = {"secret-key", "another"}});
  serving.open();
  for (const char* path : {"/v1/models", "/v1/completions", "/metrics", "/version", "/unknown", "/", "/openapi.json",
                           "/api/tags", "/v1/models/tiny"}) {
    EXPECT_EQ(serving.get(path)->status(), 401) << path;
    EXPECT_EQ(serving.get(path)->header("www-authenticate"), "Bearer");
  }
  for (const char* path : {"/health", "/livez", "/readyz"}) EXPECT_EQ(serving.get(path)->status(), 200) << path;
  const auto status = [&](const std::string& authorization) {
    return serving.get("/v1/models", {{"authorization", authorization}})->status();
  };
  EXPECT_EQ(status("Bearer secret-key"), 200);
  EXPECT_EQ(status("bearer another"), 200);
  for (const char* wrong : {"Bearer secret-ke", "Bearer secret-keyy", "secret-key", "Bearer ", "Bearer",
                            "Basic secret-key", "Bearer secret-kez", "Bearer another secret-key", ""}) {
    EXPECT_EQ(status(wrong), 401) << wrong;
  }
  EXPECT_EQ(status("Bearer " + std::string(1 << 20, 'x')), 401);
  const auto in_query =
      serving.start(HttpRequest{.method = "GET", .path = "/v1/models", .query = "api_key=secret-key"});
  EXPECT_EQ(in_query->status(), 401);
  for (const RequestRecord& record : serving.records()) EXPECT_EQ(record.error.find("secret"), std::string::npos);
}

TEST(Server, KeysShareNoCachedText) {
  Serving serving({.api_keys = {"a", "b"}});
  serving.open();
  const auto cached = [&](const std::string& key) {
    const auto reply = serving.post("/v1/completions", str("{", kPrompt, R"(, "max_tokens": 2})"),
                                    {{"authorization", "Bearer " + key}});
    serving.becomes_idle();
    return json_of(reply->body()).at("usage").at("prompt_tokens_details").at("cached_tokens").as_int();
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_GT(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
}

TEST(Server, RefusesWhatItCannotRoute) {
  Serving serving;
  serving.open();
  EXPECT_EQ(serving.get("/nothing")->status(), 404);
  EXPECT_EQ(error_of(*serving.get("/nothing"), "type"), "not_found_error");
  const auto method = serving.get("/v1/completions");
  EXPECT_EQ(method->status(), 405);
  EXPECT_EQ(method->header("allow"), "POST");
  EXPECT_EQ(serving.start(HttpRequest{.method = "BREW", .path = "/v1/models"})->status(), 405);
  EXPECT_EQ(serving.start(HttpRequest{.method = "HEAD", .path = "/v1/models"})->status(), 200);
  EXPECT_EQ(serving.post("/v1/completions", long_body(), {{"content-type", "text/plain"}})->status(), 415);
  const auto model = serving.post("/v1/completions", long_body(R"(, "model": "gpt")"));
  EXPECT_EQ(model->status(), 404);
  EXPECT_EQ(error_of(*model, "code"), "model_not_found");
  EXPECT_EQ(serving.get("/v1/models/tiny")->status(), 200);
  EXPECT_EQ(serving.get("/v1/models/none")->status(), 404);
  EXPECT_TRUE(serving.becomes_idle());
}

TEST(Server, UnknownFieldsAreIgnoredUnlessItIsStrict) {
  Serving lenient, strict({.unknown_fields = ServerConfig::UnknownFields::kRefused});
  lenient.open(), strict.open();
  const std::string body = R"({"prompt": "a", "max_tokens": 1, "nonsense": 1})";
  EXPECT_EQ(lenient.post("/v1/completions", body)->status(), 200);
  const auto refused = strict.post("/v1/completions", body);
  EXPECT_EQ(refused->status(), 400);
  EXPECT_EQ(error_of(*refused, "param"), "nonsense");
}

TEST(Server, OnlyPagesOfAllowedOriginsMayUseIt) {
  Serving serving({.cors_origins = {"localhost", "https://example.com"}});
  serving.open();
  const auto status = [&](const char* origin) { return serving.get("/v1/models", {{"origin", origin}})->status(); };
  EXPECT_EQ(status("http://localhost:3000"), 200);
  EXPECT_EQ(status("https://127.0.0.1"), 200);
  EXPECT_EQ(status("http://[::1]:8000"), 200);
  EXPECT_EQ(status("https://example.com"), 200);
  EXPECT_EQ(status("http://example.com"), 403);
  EXPECT_EQ(status("http://localhost.evil.com"), 403);
  EXPECT_EQ(status("null"), 403);
  const auto reply = serving.get("/v1/models", {{"origin", "https://example.com"}});
  EXPECT_EQ(reply->header("access-control-allow-origin"), "https://example.com");
  const auto asked = serving.start(HttpRequest{.method = "OPTIONS",
                                               .path = "/v1/completions",
                                               .headers = {{"origin", "http://localhost:1"},
                                                           {"access-control-request-method", "POST"},
                                                           {"access-control-request-headers", "authorization"}}});
  EXPECT_EQ(asked->status(), 204);
  EXPECT_EQ(asked->header("access-control-allow-headers"), "authorization");
}

TEST(Server, AFullQueueIsRefusedAtOnce) {
  Serving serving({.admission = {.max_queued_requests = 1}}, 1);
  serving.open();
  const auto first = serving.start("/v1/completions", long_body(R"(, "stream": true)"));
  const auto second = serving.start("/v1/completions", long_body(R"(, "stream": true)"));
  const auto third = serving.post("/v1/completions", long_body());
  EXPECT_EQ(third->status(), 429);
  EXPECT_EQ(error_of(*third, "type"), "rate_limit_error");
  EXPECT_GE(std::stoi(third->header("retry-after")), 1);
  EXPECT_EQ(serving.get("/readyz")->status(), 503);
  EXPECT_TRUE(first->wait_for_end() && second->wait_for_end());
  EXPECT_EQ(first->status(), 200);
  EXPECT_EQ(second->status(), 200);
  EXPECT_TRUE(serving.becomes_idle());
  EXPECT_EQ(serving.get("/readyz")->status(), 200);
}

TEST(Server, AClientThatGoesEndsItsRequest) {
  Serving serving({}, 1);
  serving.open();
  const auto first = serving.start("/v1/completions", long_body(R"(, "stream": true, "n": 64)"));
  EXPECT_TRUE(first->wait_for_text("data: "));
  const auto waiting = serving.start("/v1/completions", long_body());
  waiting->go();
  first->go();
  EXPECT_TRUE(serving.becomes_idle());
  const std::vector<RequestRecord> records = serving.records();
  ASSERT_EQ(records.size(), 2u);
  for (const RequestRecord& record : records) EXPECT_EQ(record.status, 499);
  EXPECT_EQ(serving.llm().stats().free_pages, serving.llm().stats().num_pages);
  EXPECT_NE(
      serving.get("/metrics")->body().find(R"(headrace_requests_failed_total{model_name="tiny",reason="aborted"} 2)"),
      std::string::npos);
}

TEST(Server, AStreamPausesForASlowReaderAndLosesNothing) {
  Serving serving;
  serving.open();
  const std::string body = long_body(R"(, "stream": true)");
  const auto fast = serving.post("/v1/completions", body);
  const auto slow = serving.start("/v1/completions", body);
  EXPECT_TRUE(slow->wait_for_text("data: "));
  slow->leave_unread(RequestRunner::kMostUnsent + 1);
  const auto other = serving.post("/v1/completions", body);  // it takes as long as the paused one
  EXPECT_EQ(other->status(), 200);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(slow->body().find("[DONE]"), std::string::npos);
  EXPECT_FALSE(serving.server().is_idle());
  slow->leave_unread(0);
  EXPECT_TRUE(slow->wait_for_end());
  EXPECT_EQ(stream_of(slow->body()).text, stream_of(fast->body()).text);
  EXPECT_LT(stream_of(slow->body()).num_pieces, 200) << "what waited comes in one piece";
  EXPECT_TRUE(serving.becomes_idle());
}

TEST(Server, DrainsRefusesAndEndsWhatRemains) {
  Serving serving;
  serving.open();
  const auto running = serving.start("/v1/completions", long_body(R"(, "stream": true, "n": 64)"));
  EXPECT_TRUE(running->wait_for_text("data: "));
  serving.server().drain();
  EXPECT_EQ(serving.get("/readyz")->status(), 503);
  const auto refused = serving.post("/v1/completions", long_body());
  EXPECT_EQ(refused->status(), 503);
  EXPECT_EQ(refused->header("connection"), "close");
  serving.server().end_all();
  EXPECT_TRUE(running->wait_for_end());
  EXPECT_EQ(stream_of(running->body()).last, "data: [DONE]");
  EXPECT_NE(running->body().find(R"("code": "shutting_down")"), std::string::npos);
  EXPECT_TRUE(serving.becomes_idle());
}

// A stream that runs: on a busy machine a request may wait too long before its first step.
std::shared_ptr<FakeExchange> running_stream(Serving& serving) {
  for (int i = 0; i < 100; ++i) {
    auto exchange = serving.start("/v1/completions", long_body(R"(, "stream": true, "n": 64)"));
    if (exchange->wait_for_text("data: ")) return exchange;
  }
  return nullptr;
}

TEST(Server, ARequestWaitsAndRunsForALimitedTime) {
  using std::chrono::milliseconds;
  Serving waits({.times = {.queue = milliseconds(30)}}, 1), runs({.times = {.request = milliseconds(1)}});
  waits.open(), runs.open();
  const auto running = running_stream(waits);
  ASSERT_NE(running, nullptr);
  const auto waiting = waits.post("/v1/completions", long_body());
  EXPECT_TRUE(running->wait_for_end());
  EXPECT_EQ(running->body().find("queue_timeout"), std::string::npos)
      << "one that runs is not ended by the time that others may wait";
  EXPECT_EQ(stream_of(running->body()).last, "data: [DONE]");
  EXPECT_EQ(waiting->status(), 503);
  EXPECT_EQ(error_of(*waiting, "code"), "queue_timeout");
  EXPECT_NE(waiting->header("retry-after"), "");
  const auto long_one = runs.post("/v1/completions", long_body(R"(, "n": 64)"));
  EXPECT_EQ(long_one->status(), 504);
  EXPECT_EQ(error_of(*long_one, "code"), "request_timeout");
  EXPECT_TRUE(waits.becomes_idle() && runs.becomes_idle());
}

TEST(Server, CountsTokensOfPromptsThatWait) {
  Serving serving({.admission = {.max_queued_tokens = 40}, .num_workers = 1}, 1);
  serving.open();
  const auto first = serving.start("/v1/completions", long_body(R"(, "stream": true)"));
  EXPECT_TRUE(first->wait_for_text("data: "));
  const auto second = serving.start("/v1/completions", long_body());  // 36 tokens wait
  const auto third = serving.post("/v1/completions", long_body());
  EXPECT_EQ(third->status(), 429);
  EXPECT_EQ(error_of(*third, "code"), "queue_full");
  EXPECT_TRUE(second->wait_for_end());
  EXPECT_EQ(second->status(), 200);
  EXPECT_TRUE(serving.becomes_idle());
}

// Holds the engine's thread until it is told to go on.
class Holding final : public TokenConstraint {
 public:
  explicit Holding(std::shared_future<void> goes_on) : goes_on_(std::move(goes_on)) {}
  void fill(std::span<uint32_t> bits) override {
    goes_on_.wait();
    std::ranges::fill(bits, ~0u);
  }
  void accept(int32_t /*id*/) override {}

 private:
  std::shared_future<void> goes_on_;
};

TEST(Server, IsNotReadyWhileAStepHangs) {
  Serving serving;
  serving.open();
  std::promise<void> go_on;
  EventQueue events;
  serving.llm().submit({.prompt_ids = {'a'},
                        .params = {.max_tokens = 1},
                        .constraint = std::make_shared<Holding>(go_on.get_future().share())},
                       events);
  const auto waiting = serving.start("/v1/completions", long_body());
  const auto begin = std::chrono::steady_clock::now();
  while (serving.get("/readyz")->status() == 200 &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(30)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const auto unready = serving.get("/readyz");
  EXPECT_EQ(unready->status(), 503);
  EXPECT_NE(unready->body().find("a step of the engine has run for"), std::string::npos) << unready->body();
  EXPECT_EQ(serving.get("/livez")->status(), 200);
  EXPECT_GT(serving.server().stalled_s(), 2);
  go_on.set_value();
  EXPECT_TRUE(waiting->wait_for_end());
  EXPECT_EQ(waiting->status(), 200);
  EXPECT_TRUE(serving.becomes_idle());
  EXPECT_EQ(serving.get("/readyz")->status(), 200) << "the engine goes on";
}

TEST(Server, TokenizesAndBack) {
  Serving serving;
  serving.open();
  const auto ids = serving.post("/tokenize", R"({"prompt": "hé", "return_token_strs": true})");
  EXPECT_NE(ids->body().find(R"("count": 3, "max_model_len": 256, "tokens": [104, 195, 169])"), std::string::npos)
      << ids->body();
  EXPECT_EQ(serving.post("/detokenize", R"({"tokens": [104, 195, 169]})")->body(), R"({"prompt": "hé"})");
  EXPECT_EQ(serving.post("/detokenize", R"({"tokens": [9999]})")->status(), 400);
  EXPECT_EQ(serving.post("/detokenize", "{}")->status(), 400);
  EXPECT_EQ(
      serving.get("/tokenizer_info")->body().find(R"({"vocab_size": 256, "max_model_len": 256, "bos_token": null, )"),
      0u)
      << serving.get("/tokenizer_info")->body();
}

TEST(Server, SpeaksOllamasGenerate) {
  Serving serving;
  serving.open();
  const std::string rest = R"("options": {"num_predict": 6, "seed": 1}})";
  const auto whole =
      serving.post("/api/generate", R"({"model": "tiny:latest", "prompt": "abc", "stream": false, )" + rest);
  const JsonValue body = json_of(whole->body());
  EXPECT_TRUE(body.at("done").as_bool());
  EXPECT_EQ(body.at("eval_count").as_int(), 6);
  EXPECT_EQ(body.at("prompt_eval_count").as_int(), 3);
  const auto stream = serving.post("/api/generate", R"({"prompt": "abc", )" + rest);
  EXPECT_EQ(stream->type(), "application/x-ndjson");
  std::string text, lines = stream->body();
  for (size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1) {
    text += json_of(lines.substr(at, lines.find('\n', at) - at)).at("response").as_string();
  }
  EXPECT_EQ(text, body.at("response").as_string());
  EXPECT_EQ(serving.post("/api/generate", R"({"model": "none", "prompt": "a"})")->body(),
            R"({"error": "model is 'none', expected 'tiny'"})");
  EXPECT_EQ(json_of(serving.get("/api/tags")->body()).at("models").as_array().size(), 2u);
  const JsonValue loaded = json_of(serving.get("/api/ps")->body()).at("models").as_array().at(0);
  EXPECT_EQ(loaded.at("name").as_string(), "tiny");
  EXPECT_EQ(loaded.at("size_vram").as_int(), 0);
  EXPECT_GT(loaded.at("context_length").as_int(), 0);
  EXPECT_EQ(serving.post("/api/show", R"({"model": "tiny"})")->status(), 200);
}

TEST(Server, ItsDescriptionNamesEveryRoute) {
  Serving serving;
  const auto document = serving.get("/openapi.json");
  const JsonValue json = json_of(document->body());
  EXPECT_EQ(json.at("openapi").as_string(), "3.1.0");
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/health", "/livez",
                           "/readyz", "/version", "/metrics", "/openapi.json", "/v1/models", "/v1/models/{model}",
                           "/api/chat", "/api/generate", "/api/tags", "/api/ps", "/api/show", "/api/version"}) {
    EXPECT_NE(json.at("paths").find(path), nullptr) << path;
  }
  const std::string text = document->body(), prefix = "#/components/schemas/";
  for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at + 1)) {
    const std::string name = text.substr(at + prefix.size(), text.find('"', at) - at - prefix.size());
    EXPECT_NE(json.at("components").at("schemas").find(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace headrace
