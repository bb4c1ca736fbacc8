#include "headrace/serve/admission.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "headrace/serve/metrics.h"
#include "headrace/serve/request_error.h"

namespace headrace {
namespace {

using Ticket = Admission::Ticket;

template <class Call>
int refused_status(const Call& call) {
  try {
    call();
    return 0;
  } catch (const RequestError& error) {
    return error.status();
  }
}

TEST(Admission, TakesAsManyAsRunAndWait) {
  Admission admission({.max_running = 2, .max_queued_requests = 3});
  std::vector<std::unique_ptr<Ticket>> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(std::make_unique<Ticket>(admission));
  EXPECT_TRUE(admission.is_full());
  EXPECT_EQ(refused_status([&] { const Ticket one(admission); }), 429);
  EXPECT_EQ(admission.num_live(), 5) << "one that is refused takes no place";
  tickets.pop_back();
  EXPECT_FALSE(admission.is_full());
  EXPECT_EQ(refused_status([&] { const Ticket one(admission); }), 0);
  tickets.clear();
  EXPECT_EQ(admission.num_live(), 0);
}

TEST(Admission, CountsChoicesAndLeavesOneThatIsAloneAlone) {
  Admission admission({.max_running = 2, .max_queued_requests = 3});
  Ticket alone(admission);
  alone.grow(64, 1);
  EXPECT_EQ(admission.num_live(), 64);
  alone.grow(4, 0);
  EXPECT_EQ(admission.num_live(), 4);
  Ticket other(admission);
  EXPECT_EQ(refused_status([&] { other.grow(2, 1); }), 429);
  EXPECT_EQ(admission.num_live(), 5) << "without effect";
}

TEST(Admission, BoundsTheTokensThatWait) {
  Admission admission({.max_running = 8, .max_queued_tokens = 100});
  Ticket first(admission), second(admission);
  first.grow(1, 500);  // nothing waits beside it
  EXPECT_EQ(refused_status([&] { second.grow(1, 1); }), 429);
  first.start();
  second.grow(1, 100);
  Ticket third(admission);
  EXPECT_EQ(refused_status([&] { third.grow(1, 1); }), 429);
}

TEST(Admission, SaysWhenToComeAgain) {
  Admission admission({.max_running = 1, .max_queued_requests = 1000});
  EXPECT_EQ(admission.retry_after(), 1) << "nothing has ended yet";
  for (int i = 0; i < 100; ++i) const Ticket one(admission);
  EXPECT_GE(admission.retry_after(), 1);
  EXPECT_LE(admission.retry_after(), 60);
}

TEST(Metrics, AreTextForPrometheus) {
  Metrics metrics;
  metrics.count_response(200);
  metrics.count_success("stop", {.prompt_tokens = 5, .completion_tokens = 3, .cached_tokens = 2});
  metrics.count_failure("aborted");
  metrics.add_first_token(0.003);
  metrics.add_first_token(99);
  const std::string text = metrics.text(
      {.engine = {.running = 2, .free_pages = 3, .num_pages = 4}, .http = {}, .queued = 1, .model = "a\"b"});
  for (const char* line :
       {"headrace_requests_running{model_name=\"a\\\"b\"} 2\n", "vllm:num_requests_waiting{model_name=\"a\\\"b\"} 1\n",
        "headrace_kv_cache_usage{model_name=\"a\\\"b\"} 0.25\n",
        "vllm:request_success_total{model_name=\"a\\\"b\",finished_reason=\"stop\"} 1\n",
        "headrace_requests_failed_total{model_name=\"a\\\"b\",reason=\"aborted\"} 1\n",
        "headrace_responses_total{status=\"200\"} 1\n", "vllm:time_to_first_token_seconds_bucket{le=\"0.001\"} 0\n",
        "vllm:time_to_first_token_seconds_bucket{le=\"0.005\"} 1\n",
        "vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\n", "vllm:time_to_first_token_seconds_count 2\n",
        "vllm:prompt_tokens_total{model_name=\"a\\\"b\"} 5\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

}  // namespace
}  // namespace headrace
