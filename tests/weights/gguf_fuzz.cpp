// GGUF files of models with a tokenizer, damaged: cut, with a number replaced, with dimensions whose product wraps, or
// with random bytes. Each is read or refused by an Error that names it, and nothing else. A file that is cut is
// refused.
#include <exception>
#include <limits>

#include "headrace/core/error.h"
#include "headrace/text/byte_level.h"
#include "headrace/text/tokenizer.h"
#include "headrace/weights/model_description.h"
#include "support/fuzz.h"
#include "support/gguf_writer.h"
#include "support/random.h"
#include "support/safetensors_writer.h"

namespace headrace::testing_support {
namespace {

using test::gguf_flag;
using test::gguf_key;
using test::gguf_tensor;
using test::GgufBytes;
using test::le;

constexpr std::string_view kArchitectures[] = {"llama",     "qwen2",  "qwen3",    "qwen3moe",
                                               "qwen3next", "qwen35", "qwen35moe"};
constexpr std::string_view kPres[] = {"qwen2", "qwen35", "llama-bpe", "smaug-bpe"};

template <size_t n>
std::string_view drawn(Random& random, const std::string_view (&choices)[n]) {
  return choices[static_cast<size_t>(random.below(static_cast<int64_t>(n)))];
}

std::vector<std::string> tokenizer_keys(Random& random) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(spelled(std::string(1, static_cast<char>(byte))));
  for (const char* token : {"he", "hel", "<|im_end|>", "<think>", "[PAD260]"}) tokens.emplace_back(token);
  std::vector<int32_t> types(258, 1);
  for (const int32_t type : {3, 4, 5}) types.push_back(type);
  return {gguf_key("tokenizer.ggml.model", "gpt2"),
          gguf_key("tokenizer.ggml.pre", drawn(random, kPres)),
          gguf_key("tokenizer.ggml.tokens", tokens),
          gguf_key("tokenizer.ggml.token_type", types),
          gguf_key("tokenizer.ggml.merges", std::vector<std::string>{"h e", "he l"}),
          gguf_key("tokenizer.ggml.bos_token_id", 258),
          gguf_key("tokenizer.ggml.eos_token_id", 258),
          gguf_flag("tokenizer.ggml.add_bos_token", one_in(random, 2)),
          gguf_key("tokenizer.chat_template", "{{ messages }}")};
}

std::vector<std::string> model_keys(std::string_view architecture) {
  std::vector<std::string> keys = {gguf_key("general.architecture", architecture),
                                   gguf_key("general.sampling.temp", 0.6f)};
  const auto add = [&](std::string_view name, auto value) {
    keys.push_back(gguf_key(str(architecture, ".", name), value));
  };
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, int32_t>>{{"block_count", 4},
                                                                                          {"context_length", 64},
                                                                                          {"embedding_length", 8},
                                                                                          {"feed_forward_length", 16},
                                                                                          {"attention.head_count", 2},
                                                                                          {"attention.key_length", 4},
                                                                                          {"rope.dimension_count", 4}})
    add(name, value);
  add("attention.head_count_kv", std::vector<int32_t>{2, 2, 2, 2});
  add("attention.layer_norm_rms_epsilon", 1e-6f);
  add("rope.freq_base", 1e4f);
  const bool hybrid = architecture == "qwen3next" || architecture.starts_with("qwen35");
  if (hybrid)
    for (const char* name :
         {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"})
      add(name, 4);
  if (hybrid || architecture == "qwen3moe")
    for (const char* name : {"expert_count", "expert_used_count", "expert_feed_forward_length"}) add(name, 2);
  if (hybrid) add("expert_shared_feed_forward_length", 2);
  return keys;
}

std::string good_file(Random& random) {
  const std::string_view architecture = drawn(random, kArchitectures);
  GgufBytes file{.keys = model_keys(architecture)};
  if (architecture == "qwen35")
    std::erase_if(file.keys, [](const std::string& key) { return key.find("expert") != key.npos; });
  for (std::string& key : tokenizer_keys(random)) file.keys.push_back(std::move(key));
  file.tensors = {gguf_tensor("token_embd.weight", {8, 261}, 0, 0)};
  if (architecture == "llama") file.tensors.push_back(gguf_tensor("rope_freqs.weight", {2}, 0, 8352));
  file.data = std::string(8352, '\0') + le(1.0f) + le(8.0f);
  if (architecture != "llama") file.data.resize(8352);
  return file.bytes();
}

enum class Damage : uint8_t { kNone, kCut, kNumber, kDims, kBytes };

void replace_number(Random& random, std::string& bytes) {
  constexpr uint64_t kOne = 1;
  const uint64_t number = pick(random, {uint64_t{0}, kOne, kOne << 31, kOne << 32, (kOne << 63) - 1, kOne << 63,
                                        std::numeric_limits<uint64_t>::max()});
  const int64_t header = static_cast<int64_t>(bytes.size()) - 8352 - 8;
  bytes.replace(static_cast<size_t>(random.below(header)), 8, le(number));
}

// The two dimensions of the first tensor, such that elements or bytes wrap around 2^64.
void wrap_dims(Random& random, std::string& bytes) {
  const size_t at = bytes.find("token_embd.weight") + 17 + 4;
  const int64_t first = random.below(41);
  const uint64_t extra = static_cast<uint64_t>(random.below(3));
  bytes.replace(at, 16, le((uint64_t{1} << first) + extra) + le(uint64_t{1} << std::min<int64_t>(64 - first, 63)));
}

void replace_bytes(Random& random, std::string& bytes) {
  for (int64_t i = random.below(4) + 1; i > 0; --i)
    bytes[static_cast<size_t>(random.below(static_cast<int64_t>(bytes.size()) - 8352))] =
        static_cast<char>(random.below(256));
}

Damage damage(Random& random, std::string& bytes) {
  switch (random.below(9)) {
    case 0: return Damage::kNone;
    case 1:
    case 2: return bytes.resize(static_cast<size_t>(random.below(static_cast<int64_t>(bytes.size())))), Damage::kCut;
    case 3: return wrap_dims(random, bytes), Damage::kDims;
    case 4:
    case 5:
    case 6: return replace_number(random, bytes), Damage::kNumber;
    default: return replace_bytes(random, bytes), Damage::kBytes;
  }
}

// Reads all of a file but its weights; the sentence that refuses it, or an empty one.
std::string refusal(const std::filesystem::path& path) {
  try {
    read_description(path).generation_config();
    const Tokenizer tokenizer = Tokenizer::from_directory(path);
    tokenizer.decode(tokenizer.encode("hello \xC3\xA9 <think>12"));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string wrong_with(const std::string& bytes, Damage kind) {
  const test::TempDir dir;
  const std::filesystem::path path = dir / "m.gguf";
  test::write_file(path, bytes);
  try {
    const std::string sentence = refusal(path);
    if (!sentence.empty() && !sentence.starts_with(path.string())) return "does not name the file: " + sentence;
    if (kind == Damage::kNone && !sentence.empty()) return "a good file is refused: " + sentence;
    if (kind == Damage::kCut && sentence.empty()) return "a file that was cut is read";
    if (kind == Damage::kDims && sentence.empty()) return "dimensions that wrap are read";
    return "";
  } catch (const std::exception& other) {
    return str("no Error, but ", other.what());
  }
}

FuzzCase gguf_case(uint64_t seed, const FuzzArguments&) {
  Random random(seed);
  std::string bytes = good_file(random);
  const Damage kind = damage(random, bytes);
  return {.summary = str("damage ", static_cast<int>(kind), ", ", bytes.size(), " bytes"),
          .wrong = [bytes = std::move(bytes), kind] { return wrong_with(bytes, kind); }};
}

}  // namespace
}  // namespace headrace::testing_support

int main(int argc, char** argv) {
  return headrace::testing_support::fuzz_main("gguf_fuzz", argc, argv, headrace::testing_support::gguf_case);
}
