// RequestStream for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <variant>

#include "module.h"
#include "request_stream.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;

constexpr std::chrono::milliseconds kBetweenSignals{50};

using TokenTuple = nb::typed<nb::tuple, int, float>;  // id, log-probability
using PlaceTuple =
    nb::typed<nb::tuple, int, float, nb::typed<nb::list, TokenTuple>>;  // with the likeliest in its place
using Dict = nb::typed<nb::dict, nb::str, nb::any>;

nb::typed<nb::list, TokenTuple> pairs(const std::vector<TokenLogprob>& tokens) {
  nb::typed<nb::list, TokenTuple> list;
  for (const TokenLogprob& one : tokens) list.append(nb::make_tuple(one.id, one.logprob));
  return list;
}

nb::typed<nb::list, nb::typed<nb::list, TokenTuple>> top_of(const Update& update) {
  nb::typed<nb::list, nb::typed<nb::list, TokenTuple>> list;
  for (const auto& tokens : update.top) list.append(pairs(tokens));
  return list;
}

// (token, log-probability, the likeliest in its place) of each token of the prompt but the first.
nb::typed<nb::list, PlaceTuple> prompt_logprobs_of(const Update& update) {
  nb::typed<nb::list, PlaceTuple> list;
  for (const PromptToken& one : update.prompt_logprobs) {
    list.append(nb::make_tuple(one.token.id, one.token.logprob, pairs(one.top)));
  }
  return list;
}

nb::tuple token_tuple(const StepReport::Token& token) {
  return nb::make_tuple(token.position, token.id, token.confidence);
}

Dict step_dict(const StepReport& report) {
  nb::list blocks, decided, pending;
  for (const StepReport::Block& block : report.blocks) {
    const bool is_active = block.state == DecodingBlock::State::kActive;
    blocks.append(nb::make_tuple(block.begin, block.end, is_active ? "active" : "to_cache", block.num_masked));
  }
  for (const StepReport::Token& token : report.decided) decided.append(token_tuple(token));
  for (const auto& token : report.pending) pending.append(token ? nb::object(token_tuple(*token)) : nb::none());
  Dict step;
  step["step"] = report.step;
  step["context_len"] = report.context_len;
  step["first_position"] = report.first_position;
  step["num_rows"] = report.num_rows;
  step["stored"] = nb::make_tuple(report.stored.begin, report.stored.end);
  step["blocks"] = blocks;
  step["decided"] = decided;
  step["pending"] = pending;
  return step;
}

nb::typed<nb::list, Dict> steps_of(const Update& update) {
  nb::typed<nb::list, Dict> list;
  for (const StepReport& report : update.steps) list.append(step_dict(report));
  return list;
}

std::optional<std::string> finish_reason_of(const Update& update) {
  return update.finish_reason ? std::optional<std::string>(name_of(*update.finish_reason)) : std::nullopt;
}

std::variant<std::monostate, std::string, int32_t> stop_reason_of(const Update& update) {
  if (update.stop_text) return *update.stop_text;
  if (update.stop_token) return *update.stop_token;
  return {};
}

nb::object error_of(const Update& update) { return update.error ? exception_of(*update.error) : nb::none(); }

int64_t add(RequestStream& stream, std::vector<int32_t> prompt_ids, const Dict& given, std::string cache_salt) {
  const Engine::Use llm(stream.engine());
  const RequestParams params = params_of(given, llm->default_params(schedule_of(given)));
  const nb::gil_scoped_release release;
  return stream.add(*llm, std::move(prompt_ids), params, std::move(cache_salt));
}

// Waits until there are updates. A signal's handler that raises ends it.
std::vector<Update> wait(RequestStream& stream) {
  const Engine::Use llm(stream.engine());  // until the GIL is here again
  while (true) {
    std::vector<Update> updates;
    {
      const nb::gil_scoped_release release;
      updates = stream.wait(*llm, kBetweenSignals);
    }
    if (!updates.empty()) return updates;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

std::vector<Update> poll(RequestStream& stream) {
  const Engine::Use llm(stream.engine());
  const nb::gil_scoped_release release;
  return stream.poll(*llm);
}

void bind_update(nb::module_& module) {
  nb::class_<Update>(module, "Update", "What came of one choice of a request since its last update.")
      .def_ro("request_id", &Update::request_id)
      .def_ro("choice", &Update::choice)
      .def_ro("seed", &Update::seed)
      .def_ro("text", &Update::text)
      .def_ro("token_ids", &Update::token_ids)
      .def_ro("logprobs", &Update::logprobs)
      .def_prop_ro("top", top_of)
      .def_prop_ro("prompt_logprobs", prompt_logprobs_of)
      .def_prop_ro("steps", steps_of)
      .def_prop_ro("finish_reason", finish_reason_of)
      .def_prop_ro("stop_reason", stop_reason_of)
      .def_ro("num_cached_tokens", &Update::num_reused)
      .def_ro("num_forwards", &Update::num_forwards)
      .def_ro("first_token_s", &Update::first_token_s)
      .def_ro("last_token_s", &Update::last_token_s)
      .def_prop_ro("error", error_of, nb::sig("def error(self) -> Exception | None"));
}

}  // namespace

void add_request_stream(nb::module_& module) {
  module.def(
      "check_params", [](const Dict& given) { params_of(given, {}); }, nb::arg("params"),
      "Refuses parameters that are wrong for every model.");
  bind_update(module);
  nb::class_<RequestStream>(module, "RequestStream", "Requests of one caller, and what comes of them.")
      .def(
          "__init__",
          [](RequestStream* self, std::shared_ptr<Engine> engine, bool whole) {
            using Delivers = RequestStream::Delivers;
            new (self) RequestStream(std::move(engine), whole ? Delivers::kWholes : Delivers::kNews);
          },
          nb::arg("engine"), nb::arg("whole"), "`whole`: each choice has one update, when it has ended.")
      .def("add", add, nb::arg("prompt_ids"), nb::arg("params"), nb::arg("cache_salt") = "",
           "Queues a request and returns its id.")
      .def("wait", wait, "Waits for updates and returns them.")
      .def("poll", poll, "Returns the updates that are there.")
      .def("fileno", &RequestStream::ready_fd, "Returns a file descriptor that is readable when poll() has work.")
      .def("close", &RequestStream::close, "Aborts all requests, without updates.");
}

}  // namespace headrace::python
