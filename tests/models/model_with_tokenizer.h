// A golden checkpoint beside a tokenizer, a chat template and a generation_config.json.
#pragma once
#include <string>

#include "headrace/text/known_patterns.h"
#include "support/safetensors_writer.h"
#include "support/source_tree.h"
#include "text/tiny_tokenizer.h"

namespace headrace::test {

inline void make_model(const TempDir& dir, const std::string& family) {
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(testing_support::golden_folder(family) / name, dir / name);
  }
  const TinyTokenizer tokenizer{.added_tokens = {{261, "<|end|>", "special"}}, .normalizer = R"({"type":"NFC"})"};
  std::string json = tokenizer.json();
  const std::string own = R"(" ?\\p{L}+| ?[^\\s\\p{L}]+|\\s+")";
  json.replace(json.find(own), own.size(), json_string(kQwen2Pattern));
  test::write_file(dir / "tokenizer.json", json);
  test::write_file(dir / "chat_template.jinja", "{{ messages[0].content }}");
  test::write_file(dir / "generation_config.json", R"({"eos_token_id": [261, 2], "temperature": 0.5, "top_k": 7})");
}

}  // namespace headrace::test
