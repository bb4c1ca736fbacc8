#include "measured_server.h"

#include <utility>

#include "headrace/core/error.h"
#include "headrace/http/open_file_limit.h"
#include "model_files.h"
#include "model_options.h"
#include "model_path.h"
#include "serve.h"

namespace headrace::app {

MeasuredServer::MeasuredServer(const ModelFlags& model, const LoadFlags& load, std::string path)
    : path_(std::move(path)) {
  raise_open_file_limit();
  const bool is_own = load.url.empty();
  if (is_own) serve(model, load);
  const ServerUrl url = is_own ? ServerUrl{"127.0.0.1", str(own_->http().port()), ""} : server_url(load.url);
  client_ = std::make_unique<LoadClient>(url, load.api_key);
  model_ = is_own ? own_->names().front() : model.model.empty() ? client_->first_model() : model.model;
  constexpr int64_t kFew = 8, kMany = 72;
  tokens_ = TokenRatio(count_tokens(kFew), count_tokens(kMany));
}

MeasuredServer::~MeasuredServer() = default;

void MeasuredServer::serve(const ModelFlags& model, const LoadFlags& load) {
  ServeFlags flags{.model = model, .max_queued_requests = load.max_queued_requests, .queue_timeout = 0};
  flags.many.max_num_seqs = load.max_num_seqs, flags.http.port = 0;
  if (!load.api_key.empty()) flags.api_keys = {load.api_key};
  LLMOptions options = options_of(model);
  const ModelDescription description = read_description(model_directory(model), options.random_weights);
  if (!options.random_weights) require_model_files(description.directory);
  only_letters_ = options.random_weights.has_value();
  options = for_many_requests(flags.many, description, std::move(options));
  event_loop_ = ThreadGroup::started_by([&] { own_ = std::make_unique<ModelServer>(flags, description, options); });
  own_->load();
  replies_ = ThreadGroup::started_by([this] { own_->open(); });
}

TokenRatio::Count MeasuredServer::count_tokens(int64_t words) {
  LoadHistory history;
  history.add_user(RandomWords(static_cast<uint64_t>(words)).text(words));
  const RequestResult result = client_->send(path_, body(history, 1));
  HR_REQUIRE(result.is_complete(), ErrorCode::kIo, "the server does not answer a first request: ", result.error);
  return {.words = words, .tokens = result.prompt_tokens};
}

std::string MeasuredServer::body(const LoadHistory& history, int64_t max_tokens) const {
  return history.body(path_, {.model = model_, .max_tokens = max_tokens, .only_letters = only_letters_});
}

std::optional<MeasuredServer::HttpCpu> MeasuredServer::http_cpu() const {
  if (own_ == nullptr) return std::nullopt;
  return HttpCpu{.event_loop_s = event_loop_.cpu_s(), .replies_s = replies_.cpu_s()};
}

}  // namespace headrace::app
