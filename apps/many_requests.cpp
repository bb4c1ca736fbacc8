#include "many_requests.h"

#include "headrace/gguf/gguf_file.h"
#include "headrace/hub/gguf_choice.h"
#include "headrace/llm/model_need.h"
#include "option_values.h"

namespace headrace::app {
namespace fs = std::filesystem;

void add_many_requests_flags(CLI::App& command, ManyRequestsFlags& f) {
  command
      .add_option("--max-num-seqs", f.max_num_seqs,
                  "requests that run at a time (default: as many of 1024 tokens as half of the free memory holds, at "
                  "most 32 on a CPU and 256 on a GPU)")
      ->check(integer_in(1, 4096));
  command
      .add_option("--served-model-name", f.served_names,
                  "names that a request's model may have (default: MODEL); responses have the first one")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name(kName);
}

std::vector<std::string> model_names(const ManyRequestsFlags& flags, const ModelFlags& model,
                                     const fs::path& directory) {
  if (!flags.served_names.empty()) return flags.served_names;
  if (is_gguf_path(directory)) return {std::string(gguf_stem(directory.filename().string())), model.model};
  std::string given = model.model.empty() ? directory.filename().string() : model.model;
  while (given.size() > 1 && given.ends_with('/')) given.pop_back();
  const std::string last = fs::path(given).filename();
  return last == given ? std::vector{given} : std::vector{given, last};
}

LLMOptions for_many_requests(const ManyRequestsFlags& flags, const ModelDescription& model, LLMOptions options) {
  options.max_num_seqs = flags.max_num_seqs ? *flags.max_num_seqs : default_num_seqs(model, options);
  return options;
}

}  // namespace headrace::app
