// Answers two prompts at once with AsyncLLM. Usage: async_llm MODEL_DIRECTORY
#include "headrace/llm/async_llm.h"

#include <cstdio>
#include <exception>
#include <map>

#include "headrace/llm/text_stream.h"

namespace {

using namespace headrace;

struct Answer {
  TextStream stream;
  Completion completion = {};
};

void answer_two(const char* model) {
  AsyncLLM llm(std::filesystem::path(model), {.max_model_len = 1024, .max_num_seqs = 8});
  EventQueue events;
  std::map<int64_t, Answer> answers;
  for (const char* prompt : {"Once upon a time", "The old woman said"}) {
    SamplingParams params = llm.default_params();
    params.max_tokens = 40, params.seed = 1, params.stop = {"."};
    const int64_t id = llm.submit({.prompt_ids = llm.tokenizer().encode(prompt), .params = params}, events);
    answers.emplace(id, Answer{.stream = {llm.tokenizer(), params.stop}});
  }
  for (size_t left = answers.size(); left > 0;) {
    const GenerationEvent event = events.wait();
    auto& [stream, completion] = answers.at(event.request_id);
    for (const StepOutput& output : event.outputs) {
      if (!stream.stopped()) stream.push(output, completion);  // throws the error of a request that failed
    }
    if (stream.stopped()) llm.abort(event.request_id);  // its last event comes all the same
    if (event.is_last()) --left;
  }
  for (const auto& [id, answer] : answers) std::printf("%s\n", answer.completion.text.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: async_llm MODEL_DIRECTORY\n", stderr), 2;
  try {
    answer_two(argv[1]);
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "async_llm: %s\n", e.what()), 1;
  }
  return 0;
}
