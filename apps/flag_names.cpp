#include "flag_names.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <string_view>

namespace headrace::app {
namespace {

struct Change {
  std::string_view from, to;
};

// Parameters whose options are not called as they are.
constexpr std::array kNames = {Change{"rule", "accept"}, Change{"num_blocks", "blocks"}};

constexpr std::array kPhrases = {
    Change{"the context (max_model_len)", "the context (-c)"},
    Change{"a smaller max_model_len", "a smaller -c"},
    Change{"a smaller cache (kv_cache_memory_bytes)", "a smaller --kv-cache-memory-bytes"},
    Change{"fewer tokens per step (max_num_batched_tokens)", "a smaller --max-num-batched-tokens"},
    Change{"the schedule 'reference'", "--schedule reference"},
};

std::string flag_of(std::string_view parameter) {
  const auto* other = std::ranges::find(kNames, parameter, &Change::from);
  std::string name(other == kNames.end() ? parameter : other->to);
  std::ranges::replace(name, '_', '-');
  return "--" + name;
}

// Returns the offset of the parameter's name in a message that begins with one.
size_t begin_of_name(std::string_view message) {
  if (!message.starts_with("strategy '")) return 0;
  constexpr std::string_view kBehindStrategy = "': ";
  const size_t at = message.find(kBehindStrategy);
  return at == std::string_view::npos ? 0 : at + kBehindStrategy.size();
}

}  // namespace

std::string in_flags(const CLI::App& command, std::string message) {
  constexpr std::string_view kOnlyRequest = "request 1: ";
  if (message.starts_with(kOnlyRequest)) message.erase(0, kOnlyRequest.size());
  const size_t begin = begin_of_name(message), end = message.find(" is ", begin);
  if (end != std::string::npos) {
    const std::string flag = flag_of(std::string_view(message).substr(begin, end - begin));
    if (command.get_option_no_throw(flag) != nullptr) message.replace(begin, end - begin, flag);
  }
  for (const auto& [from, to] : kPhrases) {
    const size_t at = message.find(from);
    if (at != std::string::npos) message.replace(at, from.size(), to);
  }
  const bool of_gpu = message.starts_with("attention backend 'cuda");
  if (of_gpu && message.find("' is not built for device cpu; ") != std::string::npos) {
    message += "; it needs --device cuda";
  }
  return message;
}

}  // namespace headrace::app
