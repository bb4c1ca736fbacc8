#include "engine.h"

#include <nanobind/stl/shared_ptr.h>
#include <unistd.h>

#include "engine_options.h"
#include "fields.h"
#include "headrace/llm/model_need.h"
#include "module.h"
#include "released_gil.h"
#include "request_params.h"
#include "template_value.h"

namespace headrace::python {

Engine::Engine(const ModelDescription& model, LLMOptions options) : directory_(model.directory), process_(getpid()) {
  if (options.max_num_seqs == 0) options.max_num_seqs = default_num_seqs(model, options);
  llm_ = std::make_unique<AsyncLLM>(model, options);
}

Engine::Use::Use(Engine& engine) : engine_(engine) {
  HR_REQUIRE(!engine.is_forked(), ErrorCode::kUnsupported, "this LLM belongs to process ", engine.process_,
             ", from which this one was forked: load the model in the child, or start the child by spawn");
  const std::lock_guard lock(engine.mutex_);
  HR_REQUIRE(!engine.closing_, ErrorCode::kCancelled, "this LLM is closed");
  ++engine.num_uses_;
}

Engine::Use::Use(const Use& other) : engine_(other.engine_) {
  const std::lock_guard lock(engine_.mutex_);
  ++engine_.num_uses_;
}

Engine::Use::~Use() {
  if (engine_.is_forked()) return;  // who held the lock is in the parent
  const std::lock_guard lock(engine_.mutex_);
  if (--engine_.num_uses_ == 0) engine_.changed_.notify_all();
}

bool Engine::is_closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

bool Engine::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void Engine::keep(std::unique_ptr<EventQueue> events) {
  const std::lock_guard lock(mutex_);
  if (!closed_) kept_.push_back(std::move(events));
}

bool Engine::is_forked() const { return getpid() != process_; }

void Engine::close() {
  if (is_forked()) {
    static_cast<void>(llm_.release());  // its thread, and whoever holds its locks, are in the parent
    return;
  }
  std::unique_lock lock(mutex_);
  if (closing_) {
    changed_.wait(lock, [this] { return closed_; });
    return;
  }
  closing_ = true;
  changed_.wait(lock, [this] { return num_uses_ == 0; });
  lock.unlock();
  llm_.reset();
  lock.lock();
  closed_ = true;
  kept_.clear();
  changed_.notify_all();
}

const ChatTemplate& Engine::chat_template() {
  const std::lock_guard lock(mutex_);
  if (!template_) template_ = ChatTemplate::of_model(directory_);
  HR_REQUIRE(template_, ErrorCode::kInvalidArgument, directory_.string(), ": has no chat template, expected one");
  return *template_;
}

namespace {

// LoadedEngines: the engines that load() made.
struct LoadedEngines {
  std::mutex mutex;
  std::vector<std::weak_ptr<Engine>> engines;
};

LoadedEngines& loaded_engines() {
  static LoadedEngines& loaded = *new LoadedEngines;  // never freed: the interpreter may end behind static objects
  return loaded;
}

void add_loaded(const std::shared_ptr<Engine>& engine) {
  const std::lock_guard lock(loaded_engines().mutex);
  std::erase_if(loaded_engines().engines, [](const auto& one) { return one.expired(); });
  loaded_engines().engines.push_back(engine);
}

namespace nb = nanobind;
using Arguments = nb::typed<nb::dict, nb::str, nb::any>;
using Objects = nb::typed<nb::list, nb::any>;

// Thrown out of loading when a signal's handler raised: its exception is set in this thread.
struct Raised {};

// Messages go to Python's logging, on whatever thread they come.
void log_to_python(LogLevel level, std::string_view message) {
  if (!nb::is_alive()) return;
  const nb::gil_scoped_acquire gil;
  try {
    const nb::object logger = nb::module_::import_("logging").attr("getLogger")("headrace");
    const char* const method = level == LogLevel::kWarning ? "warning" : level == LogLevel::kInfo ? "info" : "debug";
    logger.attr(method)("%s", nb::str(message.data(), message.size()));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("headrace: a log message");
  }
}

void expect_interpreter() {
  HR_REQUIRE(!interpreter_waits(), ErrorCode::kCancelled, "the interpreter ended while a model was loaded");
}

// Ctrl-C works while a model loads.
void check_signals() {
  expect_interpreter();
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw Raised();
}

// Python frees it, with the GIL, for which the engine's thread may wait to log.
void free_engine(Engine* engine) {
  if (engine->is_closed()) {
    delete engine;
    return;
  }
  const ReleasedGil released;
  delete engine;
}

std::shared_ptr<Engine> load(const std::string& model, const Arguments& flags) {
  LLMOptions options = options_of(flags);
  options.log = log_to_python;
  options.progress = [](std::string_view, int64_t, int64_t) { check_signals(); };
  std::shared_ptr<Engine> engine;
  try {
    const ReleasedGil released;
    const ModelDescription description = read_description(model, options.random_weights);
    engine = {new Engine(description, std::move(options)), free_engine};
  } catch (const Raised&) {
    throw nb::python_error();
  }
  add_loaded(engine);
  expect_interpreter();  // behind that: whoever ends it has closed this one, or will
  return engine;
}

// Ends it without the GIL, which the engine's thread may wait for to log.
void close(Engine& engine) {
  const ReleasedGil released;
  engine.close();
}

nb::typed<nb::dict, nb::str, nb::any> describe(Engine& engine) {
  const Engine::Use llm(engine);
  nb::typed<nb::dict, nb::str, nb::any> about;
  about["device"] = to_string(llm->device());
  about["architecture"] = llm->model_info().architecture;
  about["weights"] = llm->model_info().weight_types();
  about["dtype"] = std::string(name_of(llm->model_info().dtype));
  about["kv_cache_dtype"] = std::string(name_of(llm->config().runner.kv_dtype.value_or(llm->model_info().dtype)));
  about["strategy"] = llm->config().strategy;
  about["is_diffusion"] = llm->model_info().diffusion.has_value();
  about["max_model_len"] = llm->config().max_context_len;
  about["max_num_seqs"] = llm->config().max_requests;
  about["vocab_size"] = llm->config().vocab;
  about["eos_token_ids"] = llm->model_info().eos_ids;
  return about;
}

nb::typed<nb::dict, nb::str, int> stats(Engine& engine) {
  const Engine::Use llm(engine);
  const EngineStats now = llm->stats();
  nb::typed<nb::dict, nb::str, int> numbers;
  numbers["num_running"] = now.running;
  numbers["num_waiting"] = now.waiting;
  numbers["num_steps"] = now.steps;
  numbers["num_tokens"] = now.tokens;
  numbers["num_preemptions"] = now.preemptions;
  numbers["num_free_pages"] = now.free_pages;
  numbers["num_pages"] = now.num_pages;
  return numbers;
}

std::vector<int32_t> encode(Engine& engine, const std::string& text, bool add_special_tokens) {
  const Engine::Use llm(engine);
  const nb::gil_scoped_release release;
  return llm->tokenizer().encode(
      text, {.special_tokens = SpecialTokens::kParse,
             .add_special_tokens = add_special_tokens ? AddSpecialTokens::kYes : AddSpecialTokens::kNo});
}

std::string decode(Engine& engine, const std::vector<int32_t>& ids, bool skip_special_tokens) {
  const Engine::Use llm(engine);
  for (const int32_t id : ids) {
    HR_REQUIRE(id >= 0 && id < llm->config().vocab, ErrorCode::kInvalidArgument, "token_ids has ", id,
               ", expected 0 to ", llm->config().vocab - 1);
  }
  return llm->tokenizer().decode(ids, skip_special_tokens ? SpecialText::kSkip : SpecialText::kKeep);
}

nb::typed<nb::tuple, std::string, std::vector<int32_t>> render_chat(Engine& engine, const Objects& messages,
                                                                    const Arguments& options) {
  const Engine::Use llm(engine);
  const Fields fields(options);
  ChatInput input;
  for (const nb::handle message : messages) input.messages.push_back(template_value(message));
  if (options.contains("tools")) input.tools = template_value(options["tools"]);
  fields.read("add_generation_prompt", input.add_generation_prompt);
  fields.read("continue_final_message", input.continue_final_message);
  if (options.contains("chat_template_kwargs")) input.kwargs = template_object(options["chat_template_kwargs"]);
  std::optional<std::string> source;
  fields.read("chat_template", source);
  const std::string_view text = source ? *source : engine.chat_template().source();
  HR_REQUIRE(input.tools.is_null() || text.find("tools") != text.npos, ErrorCode::kUnsupported,
             "tools is given, expected None: the chat template shows none to the model");
  const ChatPrompt prompt =
      source ? ChatTemplate::from_text(*source, "", "").render(input) : engine.chat_template().render(input);
  return nb::make_tuple(prompt.text, headrace::encode(llm->tokenizer(), prompt));
}

}  // namespace

void close_engines() {
  std::unique_lock lock(loaded_engines().mutex);
  const std::vector<std::weak_ptr<Engine>> engines = loaded_engines().engines;
  lock.unlock();
  for (const std::weak_ptr<Engine>& one : engines) {
    if (const std::shared_ptr<Engine> engine = one.lock()) engine->close();
  }
}

void add_engine(nb::module_& module) {
  nb::class_<Engine>(module, "Engine", "A loaded model and the thread that runs it.")
      .def("close", close, "Aborts all requests and frees the model; the engine cannot be used any more.")
      .def("describe", describe, "Returns the device, the strategy, the context and the like.")
      .def("stats", stats, "Returns numbers of the moment: requests, steps, pages.")
      .def(
          "abort", [](Engine& engine, int64_t request_id) { Engine::Use(engine)->abort(request_id); },
          nb::arg("request_id"), "Ends a request of any stream: its last update comes.")
      .def("encode", encode, nb::arg("text"), nb::arg("add_special_tokens") = true, "Returns the token ids of a text.")
      .def("decode", decode, nb::arg("token_ids"), nb::arg("skip_special_tokens") = true,
           "Returns the text of token ids.")
      .def("render_chat", render_chat, nb::arg("messages"), nb::arg("options"),
           "Returns the text and the token ids of a conversation.");
  module.def("load", load, nb::arg("model"), nb::arg("flags"), "Loads the model of a directory or a GGUF file.");
}

}  // namespace headrace::python
