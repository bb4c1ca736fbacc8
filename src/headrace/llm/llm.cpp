#include "headrace/llm/llm.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "headrace/engine/decoding_checks.h"
#include "headrace/llm/naming_model.h"
#include "headrace/llm/text_stream.h"

namespace headrace {
namespace {

// A request whose events its owner takes. Destroying it aborts it and waits for its last event.
class OwnRequest {
 public:
  OwnRequest(AsyncLLM& llm, GenerationRequest request) : llm_(llm), id_(llm.submit(std::move(request), events_)) {}
  OwnRequest(const OwnRequest&) = delete;
  OwnRequest& operator=(const OwnRequest&) = delete;
  ~OwnRequest() {
    if (!ended_) llm_.abort(id_);
    while (!ended_) next();
  }

  bool ended() const { return ended_; }
  GenerationEvent next() {
    GenerationEvent event = events_.wait();
    ended_ = event.is_last();
    return event;
  }

 private:
  AsyncLLM& llm_;  // not owned
  EventQueue events_;
  int64_t id_;
  bool ended_ = false;
};

}  // namespace

Completion LLM::generate(std::string_view prompt, const SamplingParams& params, const OnText& on_text,
                         const OnStep& on_step) {
  return generate(tokenizer().encode(prompt), params, on_text, on_step);
}

Completion LLM::generate(std::vector<int32_t> prompt_ids, const SamplingParams& params, const OnText& on_text,
                         const OnStep& on_step) {
  Completion result{.prompt_ids = std::move(prompt_ids)};
  TextStream stream(tokenizer(), params.stop);
  GenerationRequest asked{.prompt_ids = result.prompt_ids, .params = params, .reports_steps = true};
  asked.params.seed = params.seed.value_or(0);
  OwnRequest request(async_, std::move(asked));
  bool aborted = false;
  while (!request.ended() && !aborted && !stream.stopped()) {
    const GenerationEvent event = request.next();
    if (event.outputs.empty()) {
      result.num_forwards = event.num_forwards;
      aborted = on_text({}, result) == StreamAction::kStop;
    }
    for (const StepOutput& out : event.outputs) {
      const std::string piece = naming(directory_, [&] { return stream.push(out, result); });
      aborted = on_text(piece, result) == StreamAction::kStop;
      if (aborted || stream.stopped()) break;  // the step's other tokens are after the stop
    }
    if (aborted) result.finish_reason = FinishReason::kAborted;
    if (on_step && event.report) on_step(*event.report);
  }
  return result;
}

namespace {

std::span<const float> row_of_logits(const TensorView& row) {
  return {static_cast<const float*>(row.data()), static_cast<size_t>(row.numel())};
}

// log sum exp
double log_sum(std::span<const float> logits) {
  const double largest = std::ranges::max(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - largest);
  return largest + std::log(sum);
}

void add_row(const TensorView& expected_row, const TensorView& found_row, LLM::Divergence& total) {
  const std::span<const float> expected = row_of_logits(expected_row), found = row_of_logits(found_row);
  const double log_p = log_sum(expected), log_q = log_sum(found);
  HR_REQUIRE(std::isfinite(log_p) && std::isfinite(log_q), ErrorCode::kModelFile, "divergence: logits are no numbers");
  for (size_t i = 0; i < found.size(); ++i) {
    const double p = static_cast<double>(expected[i]) - log_p, q = static_cast<double>(found[i]) - log_q;
    total.nats += std::exp(p) * (p - q);
  }
  const auto top = [](std::span<const float> row) { return std::ranges::max_element(row) - row.begin(); };
  ++total.tokens;
  if (top(expected) == top(found)) ++total.same_top;
}

}  // namespace

LLM::Windows LLM::windows_of(std::string_view text, int32_t window) {
  check_scores(model_info());
  const std::vector<int32_t> ids = tokenizer().encode(text, {.add_special_tokens = AddSpecialTokens::kNo});
  const std::span<const int32_t> prefix = tokenizer().prefix_ids();
  const auto num_prefix = static_cast<int32_t>(prefix.size()), least = std::max(3, num_prefix + 2);
  const int32_t context = engine().scheduler().table().max_context_len();
  HR_REQUIRE(context >= least, ErrorCode::kInvalidArgument, "perplexity: the context holds ", context,
             " tokens, expected ", least, " or more");
  const auto most = static_cast<int32_t>(std::min<int64_t>(context - 1, config().runner.max_tokens));
  const int32_t size = std::min(window, most);  // a request needs room for one more token
  HR_REQUIRE(size > num_prefix, ErrorCode::kInvalidArgument, "perplexity: a window has ", size,
             " tokens, expected more than the ", num_prefix, " that the tokenizer puts before a text");
  Windows windows{.num_prefix = prefix.size(),
                  .num_given = std::max<size_t>(1, prefix.size()),
                  .size = size,
                  .num_tokens = std::ssize(ids)};
  const size_t each = static_cast<size_t>(size) - prefix.size();
  for (size_t at = 0; at < ids.size(); at += each) {
    const size_t end = std::min(ids.size(), at + each);
    std::vector<int32_t> part(prefix.begin(), prefix.end());
    part.insert(part.end(), ids.begin() + static_cast<int64_t>(at), ids.begin() + static_cast<int64_t>(end));
    if (part.size() >= 2) windows.texts.push_back(std::move(part));
  }
  HR_REQUIRE(!windows.texts.empty(), ErrorCode::kInvalidArgument, "perplexity: the text has fewer than two tokens");
  return windows;
}

LLM::Perplexity LLM::perplexity(std::string_view text, int32_t window, const OnWindow& on_window) {
  const Windows windows = windows_of(text, window);
  Perplexity total{.window = windows.size};
  int64_t done = 0;
  for (const std::vector<int32_t>& part : windows.texts) {
    const std::vector<float> logprobs = naming(directory_, [&] { return engine().score(part); });
    for (size_t i = windows.num_given; i < part.size(); ++i) {
      total.bits -= static_cast<double>(logprobs[i - 1]) / std::log(2.0);
      total.bytes += static_cast<int64_t>(tokenizer().bytes_of(part[i]).size());
    }
    total.tokens += static_cast<int64_t>(part.size() - windows.num_given);
    done += static_cast<int64_t>(part.size() - windows.num_prefix);
    if (on_window) on_window(done, windows.num_tokens);
  }
  return total;
}

LLM::Divergence LLM::divergence_from(LLM& exact, std::string_view text, int32_t window, const OnWindow& on_window) {
  HR_REQUIRE(exact.model_info().vocab_size == model_info().vocab_size, ErrorCode::kInvalidArgument,
             "divergence: vocabularies of ", model_info().vocab_size, " and ", exact.model_info().vocab_size,
             " tokens, expected one model in two forms");
  const Windows windows = windows_of(text, std::min(window, exact.windows_of(text, window).size));
  Divergence total;
  int64_t done = 0;
  for (const std::vector<int32_t>& part : windows.texts) {
    const Tensor expected = naming(exact.directory_, [&] { return exact.engine().logits(part); });
    const Tensor found = naming(directory_, [&] { return engine().logits(part); });
    for (int64_t row = static_cast<int64_t>(windows.num_given) - 1; row < found.dim(0); ++row) {
      add_row(expected.view().select(row), found.view().select(row), total);
    }
    done += static_cast<int64_t>(part.size() - windows.num_prefix);
    if (on_window) on_window(done, windows.num_tokens);
  }
  return total;
}

}  // namespace headrace
