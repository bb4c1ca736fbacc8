// A server of a small model with random weights, for tests.
#pragma once
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fake_exchange.h"
#include "headrace/llm/async_llm.h"
#include "headrace/serve/server.h"
#include "support/source_tree.h"

namespace headrace::testing_support {

// A template of messages in angle brackets: "<user>Hi</user><assistant>". It refuses roles other than these.
inline constexpr const char* kAngleTemplate =
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('no role ' + m.role) }}{% endif %}<{{ m.role }}>{{ m.content }}"
    "{% if not loop.last or not continue_final_message %}</{{ m.role }}>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if enable_thinking %}<think>{% endif %}";

inline LLMOptions serving_options(int32_t max_num_seqs) {
  return {.dtype = DType::kF32,
          .context = {.threads = 1, .determinism = Determinism::kStrict},
          .page_size = 16,
          .max_model_len = 256,
          .max_num_seqs = max_num_seqs,
          .random_weights = 1};
}

// Tokens are bytes.
class Serving {
 public:
  explicit Serving(ServerConfig config = {}, int32_t max_num_seqs = 4)
      : records_(std::make_shared<Records>()), server_(with_records(std::move(config), max_num_seqs, records_)) {
    llm_ = std::make_unique<AsyncLLM>(source_tree() / "tests" / "golden" / "qwen3_5", serving_options(max_num_seqs));
  }
  ~Serving() {
    server_.close();
    llm_.reset();
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  void open(std::optional<ChatTemplate> chat = {}) {
    server_.open(std::make_shared<ServedModel>(*llm_, std::vector<std::string>{"tiny", "other"}, std::move(chat),
                                               llm_->default_params()));
  }
  Server& server() { return server_; }
  AsyncLLM& llm() { return *llm_; }

  // Hands a request to the server.
  std::shared_ptr<FakeExchange> start(HttpRequest request) {
    request.id = "id-1", request.peer = "test:1";
    auto exchange = std::make_shared<FakeExchange>(std::move(request));
    server_.handle(exchange);
    return exchange;
  }
  std::shared_ptr<FakeExchange> start(std::string path, std::string body, HttpHeaders headers = {}) {
    return start(
        HttpRequest{.method = "POST", .path = std::move(path), .headers = std::move(headers), .body = std::move(body)});
  }
  // As above, and waits for the end of the response.
  std::shared_ptr<FakeExchange> post(std::string path, std::string body, HttpHeaders headers = {}) {
    auto exchange = start(std::move(path), std::move(body), std::move(headers));
    exchange->wait_for_end();
    return exchange;
  }
  std::shared_ptr<FakeExchange> get(std::string path, HttpHeaders headers = {}) {
    return start(HttpRequest{.method = "GET", .path = std::move(path), .headers = std::move(headers)});
  }
  std::vector<RequestRecord> records() const {
    const std::lock_guard lock(records_->mutex);
    return records_->all;
  }
  // Waits until the engine has nothing left, and nothing is held.
  bool becomes_idle() {
    for (int i = 0; i < 6000; ++i) {
      const EngineStats stats = llm_->stats();
      if (server_.is_idle() && stats.running + stats.waiting == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  struct Records {
    std::mutex mutex;
    std::vector<RequestRecord> all;
  };
  static ServerConfig with_records(ServerConfig config, int32_t max_num_seqs, const std::shared_ptr<Records>& records) {
    if (config.admission.max_running == 1) config.admission.max_running = max_num_seqs;
    config.on_request = [records](const RequestRecord& record) {
      const std::lock_guard lock(records->mutex);
      records->all.push_back(record);
    };
    return config;
  }

  std::shared_ptr<Records> records_;
  Server server_;
  std::unique_ptr<AsyncLLM> llm_;
};

}  // namespace headrace::testing_support
