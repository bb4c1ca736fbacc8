// A tokenizer.json of 256 byte tokens and a few merges, written by a test that changes one part of it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headrace/core/error.h"
#include "headrace/text/byte_level.h"
#include "headrace/text/json_string.h"

namespace headrace {

struct TinyAddedToken {
  int id;
  std::string content;
  std::string flags;  // which of single_word, lstrip, rstrip, normalized, special are true
};

// The JSON of each part; bytes have the ids 0 to 255, `words` (spelled) the ids from 256 on.
struct TinyTokenizer {
  std::vector<std::string> words = {"he", "ll", "hell", "hello", "Ġw"};
  std::string merges = R"(["h e", "l l", "he ll", "hell o", "Ġ w"])";
  std::string ignore_merges = "false";
  std::vector<TinyAddedToken> added_tokens = {{300, "<|end|>", "special"}, {301, "<think>", ""}};
  std::string normalizer = "null";
  std::string post_processor = "null";

  std::string vocab() const {
    std::string out;
    for (int byte = 0; byte < 256; ++byte)
      out += str(byte == 0 ? "" : ",", json_string(spelled(std::string(1, static_cast<char>(byte)))), ":", byte);
    for (size_t i = 0; i < words.size(); ++i) out += str(",", json_string(words[i]), ":", 256 + i);
    return out;
  }

  std::string added() const {
    std::string out;
    for (const TinyAddedToken& token : added_tokens) {
      out += str(out.empty() ? "" : ",", R"({"id":)", token.id, R"(,"content":)", json_string(token.content));
      for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"})
        out += str(",\"", flag, "\":", token.flags.find(flag) == std::string::npos ? "false" : "true");
      out += "}";
    }
    return out;
  }

  std::string json() const {
    return str(
        R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)", added(), R"(],"normalizer":)",
        normalizer, R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[)",
        R"({"type":"Split","pattern":{"Regex":" ?\\p{L}+| ?[^\\s\\p{L}]+|\\s+"},"behavior":"Isolated","invert":false},)",
        R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},)",
        R"("post_processor":)", post_processor, R"(,"decoder":{"type":"ByteLevel"},)",
        R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)",
        R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":)", ignore_merges,
        R"(,"vocab":{)", vocab(), R"(},"merges":)", merges, "}}");
  }
};

}  // namespace headrace
