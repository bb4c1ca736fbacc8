// Writes a GGUF file of a tiny model with random weights, a tokenizer of bytes and a chat template.
// Usage: tiny_gguf FILE.gguf, or tiny_gguf --parts STEM, which writes STEM-00001-of-00002.gguf and its second part.
#include <cstdio>
#include <string>
#include <vector>

#include "headrace/core/error.h"
#include "headrace/text/byte_level.h"
#include "support/gguf_writer.h"
#include "support/random.h"
#include "support/safetensors_writer.h"

namespace {

using headrace::spelled;
using headrace::str;
using headrace::test::gguf_key;
using headrace::test::gguf_tensor;
using headrace::test::GgufBytes;
using headrace::test::le;
using headrace::testing_support::Random;

constexpr uint64_t kHidden = 32, kHeadDim = 16, kVocab = 257;

std::vector<std::string> tiny_keys() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(spelled(std::string(1, static_cast<char>(byte))));
  tokens.emplace_back("<|im_end|>");
  std::vector<int32_t> types(256, 1);
  types.push_back(3);
  std::vector<std::string> keys = {
      gguf_key("general.architecture", "qwen3"),
      gguf_key("qwen3.attention.layer_norm_rms_epsilon", 1e-6f),
      gguf_key("qwen3.rope.freq_base", 1e6f),
      gguf_key("tokenizer.ggml.model", "gpt2"),
      gguf_key("tokenizer.ggml.pre", "qwen2"),
      gguf_key("tokenizer.ggml.tokens", tokens),
      gguf_key("tokenizer.ggml.token_type", types),
      gguf_key("tokenizer.ggml.merges", std::vector<std::string>()),
      gguf_key("tokenizer.ggml.eos_token_id", 256),
      gguf_key("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")};
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, int32_t>>{{"block_count", 1},
                                                              {"context_length", 512},
                                                              {"embedding_length", kHidden},
                                                              {"feed_forward_length", kHidden},
                                                              {"attention.head_count", 2},
                                                              {"attention.head_count_kv", 1},
                                                              {"attention.key_length", kHeadDim},
                                                              {"attention.value_length", kHeadDim}})
    keys.push_back(gguf_key(str("qwen3.", name), value));
  return keys;
}

// Adds a tensor of F32.
void add(GgufBytes& file, Random& random, std::string_view name, const std::vector<uint64_t>& dims) {
  uint64_t elements = 1;
  for (const uint64_t dim : dims) elements *= dim;
  file.data.resize((file.data.size() + 31) / 32 * 32);
  file.tensors.push_back(gguf_tensor(name, dims, 0, file.data.size()));
  const double scale = dims.size() == 1 ? 0 : 0.3;
  for (uint64_t i = 0; i < elements; ++i)
    file.data += le(static_cast<float>((dims.size() == 1 ? 1 : 0) + scale * random.normal()));
}

void add_ends(GgufBytes& file, Random& random) {
  add(file, random, "token_embd.weight", {kHidden, kVocab});
  add(file, random, "output_norm.weight", {kHidden});
}

void add_layer(GgufBytes& file, Random& random) {
  add(file, random, "blk.0.attn_norm.weight", {kHidden});
  add(file, random, "blk.0.attn_q.weight", {kHidden, 2 * kHeadDim});
  add(file, random, "blk.0.attn_k.weight", {kHidden, kHeadDim});
  add(file, random, "blk.0.attn_v.weight", {kHidden, kHeadDim});
  add(file, random, "blk.0.attn_output.weight", {2 * kHeadDim, kHidden});
  add(file, random, "blk.0.attn_q_norm.weight", {kHeadDim});
  add(file, random, "blk.0.attn_k_norm.weight", {kHeadDim});
  add(file, random, "blk.0.ffn_norm.weight", {kHidden});
  for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"})
    add(file, random, str("blk.0.", name, ".weight"), {kHidden, kHidden});
}

void number_part(GgufBytes& file, uint16_t part) {
  file.keys.push_back(gguf_key("split.no", 2, le(part)));
  file.keys.push_back(gguf_key("split.count", 2, le(uint16_t{2})));
  file.keys.push_back(gguf_key("split.tensors.count", 13));
}

void write_parts(const std::string& stem) {
  Random random(1);
  GgufBytes first{.keys = tiny_keys()}, second;
  add_ends(first, random);
  add_layer(second, random);
  number_part(first, 0);
  number_part(second, 1);
  headrace::test::write_file(stem + "-00001-of-00002.gguf", first.bytes());
  headrace::test::write_file(stem + "-00002-of-00002.gguf", second.bytes());
}

void write_whole(const std::string& path) {
  Random random(1);
  GgufBytes file{.keys = tiny_keys()};
  add_ends(file, random);
  add_layer(file, random);
  headrace::test::write_file(path, file.bytes());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) {
    write_whole(argv[1]);
  } else if (argc == 3 && std::string_view(argv[1]) == "--parts") {
    write_parts(argv[2]);
  } else {
    std::fputs("usage: tiny_gguf FILE.gguf | tiny_gguf --parts STEM\n", stderr);
    return 2;
  }
  return 0;
}
