// 20,000 strings per family against the ids and texts of the `tokenizers` package; tools/golden/make_tokenizers.py
// makes the files, which hold hashes of both.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "headrace/core/error.h"
#include "headrace/text/detokenizer.h"
#include "headrace/text/tokenizer.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

constexpr size_t kNumStrings = 20000, kNumLists = 2000;

std::string fixture(const std::string& name) { return testing_support::golden_folder("tokenizers") / name; }

// Little-endian values of a fixture, in order.
class Reader {
 public:
  explicit Reader(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    HR_REQUIRE(in, ErrorCode::kIo, path, ": cannot be opened");
    data_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }

  std::string bytes(size_t count) {
    HR_REQUIRE(at_ + count <= data_.size(), ErrorCode::kIo, "fixture ends at ", data_.size());
    at_ += count;
    return data_.substr(at_ - count, count);
  }

  uint32_t integer(size_t size) {
    uint32_t value = 0;
    const std::string raw = bytes(size);
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<uint8_t>(raw[i]);
    return value;
  }

  uint16_t u16() { return static_cast<uint16_t>(integer(2)); }
  uint32_t u32() { return integer(4); }

  bool at_end() const { return at_ == data_.size(); }

 private:
  std::string data_;
  size_t at_ = 0;
};

uint32_t fnv1a(std::string_view text) {
  uint32_t hash = 0x811C9DC5;
  for (const char byte : text) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x01000193;
  return hash;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, SpecialText special) {
  Detokenizer detokenizer(tokenizer, special);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.flush();
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    out += byte >= 0x20 && byte < 0x7F ? std::string(1, c)
                                       : str("\\x", "0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]);
  }
  return out;
}

std::string joined(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string out;
  for (const int32_t id : ids) out += str(id, "=", tokenizer.id_to_token(id).value_or("?"), " ");
  return out;
}

// The bytes of one list in a fixture: u16 count, u16 ids.
std::string packed(const std::vector<int32_t>& ids) {
  std::string out;
  const auto push = [&out](size_t value) {
    out += static_cast<char>(value & 0xFF);
    out += static_cast<char>(value >> 8);
  };
  push(ids.size());
  for (const int32_t id : ids) push(static_cast<size_t>(id));
  return out;
}

struct Family {
  std::string name, golden;  // the tokenizer, and the ids that it gives
};
std::ostream& operator<<(std::ostream& out, const Family& family) { return out << family.name; }

Tokenizer load(const std::string& name) {
  return std::filesystem::is_directory(fixture(name)) ? Tokenizer::from_directory(fixture(name))
                                                      : Tokenizer::from_file(fixture(name + ".json"));
}

class TokenizerGolden : public testing::TestWithParam<Family> {
 protected:
  // Both texts of the ids, one behind the other. Text that comes token by token is the same.
  std::string texts_of(const std::vector<int32_t>& ids, const std::string& what) {
    std::string texts;
    for (const SpecialText special : {SpecialText::kKeep, SpecialText::kSkip}) {
      const std::string text = tokenizer_.decode(ids, special);
      if (text != streamed(tokenizer_, ids, special)) fail(what, ids, text);
      texts += text;
    }
    return texts;
  }

  void expect_the_next_hash(const std::string& data, const std::string& what, const std::vector<int32_t>& ids) {
    if (fnv1a(data) != golden_.u32()) fail(what, ids, tokenizer_.decode(ids, SpecialText::kKeep));
  }

  std::vector<int32_t> encode(const std::string& text, SpecialTokens special) const {
    return tokenizer_.encode(text, {.special_tokens = special});
  }

  const Tokenizer tokenizer_ = load(GetParam().name);
  Reader golden_{fixture(GetParam().golden + ".bin")};
  int failures_ = 0;  // only the first ten are printed

 private:
  void fail(const std::string& what, const std::vector<int32_t>& ids, const std::string& text) {
    if (++failures_ > 10) return;
    ADD_FAILURE() << what << "\n got " << joined(tokenizer_, ids) << "\n text \"" << printable(text)
                  << "\"\nmake_tokenizers.py --show prints what the package gives";
  }
};

TEST_P(TokenizerGolden, MatchesThePackage) {
  EXPECT_EQ(golden_.u16(), tokenizer_.vocab_size());
  Reader strings(fixture("strings.bin"));
  for (size_t i = 0; i < kNumStrings; ++i) {
    const std::string text = strings.bytes(strings.u16()), what = str("string ", i, ": \"", printable(text), '"');
    const std::vector<int32_t> ids = encode(text, SpecialTokens::kParse);
    const std::string lists = packed(ids) + packed(encode(text, SpecialTokens::kAsText));
    expect_the_next_hash(lists + texts_of(ids, what), what, ids);
  }
  EXPECT_TRUE(strings.at_end());
  EXPECT_EQ(failures_, 0);
}

TEST_P(TokenizerGolden, DecodesRandomIdsAsThePackage) {
  const int32_t size = golden_.u16();
  golden_.bytes(kNumStrings * 4);
  Reader lists(fixture("lists.bin"));
  for (size_t i = 0; i < kNumLists; ++i) {
    std::vector<int32_t> ids(lists.u16());
    for (int32_t& id : ids) {
      const int32_t draw = lists.u16();
      id = draw / 2 % (draw % 2 == 1 ? size : 256);
    }
    const std::string what = str("list ", i);
    expect_the_next_hash(texts_of(ids, what), what, ids);
  }
  EXPECT_TRUE(lists.at_end());
  EXPECT_TRUE(golden_.at_end());
  EXPECT_EQ(failures_, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGolden,
                         testing::Values(Family{"qwen2", "qwen2"}, Family{"qwen3_5", "qwen3_5"},
                                         Family{"llama3", "llama3"}, Family{"gpt2", "gpt2"}, Family{"dream", "qwen2"},
                                         Family{"llada", "llada"}, Family{"llada2", "llada2"},
                                         Family{"stable_diffcoder", "stable_diffcoder"}, Family{"gemma", "gemma"},
                                         Family{"deepseek_coder", "deepseek_coder"}),
                         [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace headrace
