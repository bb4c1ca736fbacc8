// Every way in which a tokenizer.json is turned away: one change to a good file, one sentence.
#include "headrace/text/tokenizer_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "headrace/text/byte_level.h"
#include "headrace/text/tokenizer.h"
#include "support/refusal.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

struct Reject {
  std::string name;
  std::string from, to;  // the change to TinyTokenizer's file
  ErrorCode code;
  std::string message;  // what() contains it
};

std::ostream& operator<<(std::ostream& out, const Reject& reject) { return out << reject.name; }

constexpr auto kBad = ErrorCode::kModelFile, kNo = ErrorCode::kUnsupported;

const std::vector<Reject> kRejects = {
    {"no_json", R"({"version")", R"({version")", kBad, "the file is no JSON"},
    {"invalid_utf8", "hello", "hell\xFF", kBad, "the file is no JSON"},
    {"unknown_key", R"("padding":null)", R"("pad":null)", kNo, "the file has 'pad', which is not supported"},
    {"version", R"("1.0")", R"("2.0")", kNo, "version is '2.0'"},
    {"no_version", R"("version":"1.0",)", "", kBad, "the file has no 'version'"},
    {"normalizer", R"("normalizer":null)", R"("normalizer":{"type":"Lowercase"})", kNo,
     "normalizer is 'Lowercase', which is not supported; built is NFC, Replace, Sequence"},
    {"inner_normalizer", R"("normalizer":null)", R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"}]})",
     kNo, "normalizer.normalizers[0] is 'NFKC'"},
    {"normalizer_type", R"("normalizer":null)", R"("normalizer":{})", kBad, "normalizer has no 'type'"},
    {"no_pre_tokenizer", R"("pre_tokenizer":)", R"("pre_tokenizer":null,"padding":)", kBad,
     "the file has no 'pre_tokenizer'"},
    {"pre_tokenizer", R"("type":"Split")", R"("type":"Whitespace")", kNo,
     "pre_tokenizer.pretokenizers[0] is 'Whitespace'"},
    {"behavior", "Isolated", "Removed", kNo, "pre_tokenizer.pretokenizers[0].behavior is 'Removed'"},
    {"invert", R"("invert":false)", R"("invert":true)", kNo, "invert is set"},
    {"pattern_string", R"("Regex")", R"("String")", kNo, "pattern has 'String'"},
    {"pattern_syntax", R"(|\\s+")", R"(|\\w+")", kNo, R"('\w' at byte)"},
    {"pattern_compile", R"(|\\s+")", R"(|(\\s+")", kBad, "does not compile"},
    {"no_byte_level", R"("type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false)",
     R"("type":"Sequence","pretokenizers":[])", kNo, "pre_tokenizer does not end in ByteLevel"},
    {"after_byte_level", R"("use_regex":false})", R"("use_regex":false},{"type":"Split"})", kNo,
     "pre_tokenizer.pretokenizers[2] follows ByteLevel"},
    {"post_processor", R"("post_processor":null)", R"("post_processor":{"type":"BertProcessing"})", kNo,
     "post_processor is 'BertProcessing'"},
    {"template_without_text", R"("post_processor":null)",
     R"("post_processor":{"type":"TemplateProcessing","single":[]})", kBad,
     "post_processor.single has 0 sequences, expected 1"},
    {"template_token", R"("post_processor":null)",
     R"("post_processor":{"type":"TemplateProcessing","special_tokens":{},"single":[{"SpecialToken":{"id":"x"}}]})",
     kBad, "post_processor.special_tokens has no 'x'"},
    {"template_id", R"("post_processor":null)",
     R"("post_processor":{"type":"TemplateProcessing","special_tokens":{"x":{"ids":[290]}},
        "single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}]})",
     kBad, "post_processor adds id 290"},
    {"decoder", R"("decoder":{"type":"ByteLevel"})", R"("decoder":{"type":"Fuse"})", kNo, "decoder is 'Fuse'"},
    {"no_decoder", R"("decoder":{"type":"ByteLevel"})", R"("decoder":null)", kBad, "the file has no 'decoder'"},
    {"model_type", R"("type":"BPE")", R"("type":"Unigram")", kNo,
     "model.type is 'Unigram', which is not supported; built is BPE"},
    {"model_key", R"("fuse_unk":false)", R"("foo":false)", kNo, "model has 'foo'"},
    {"model_key_hex", R"("fuse_unk":false)", R"("f\u0000'":false)", kNo, R"(model has 'f\x00\x27', which)"},
    {"token_hex", R"("hello":259)", R"("a\u0000b":"259")", kBad, R"(model.vocab['a\x00b'] is no id)"},
    {"dropout", R"("dropout":null)", R"("dropout":0.1)", kNo, "model.dropout is set"},
    {"prefix", R"("continuing_subword_prefix":null)", R"("continuing_subword_prefix":"##")", kNo,
     "model.continuing_subword_prefix is set"},
    {"suffix", R"("end_of_word_suffix":null)", R"("end_of_word_suffix":"</w>")", kNo,
     "model.end_of_word_suffix is set"},
    {"byte_fallback", R"("byte_fallback":false)", R"("byte_fallback":true)", kNo, "model.byte_fallback is set"},
    {"ignore_merges", R"("ignore_merges":false)", R"("ignore_merges":1)", kBad,
     "model.ignore_merges is not true or false"},
    {"vocab_id", R"("hello":259)", R"("hello":"259")", kBad, "model.vocab['hello'] is no id"},
    {"negative_id", R"("hello":259)", R"("hello":-1)", kBad, "model.vocab['hello'] is no id"},
    {"absurd_id", R"("hello":259)", R"("hello":2000000000)", kBad, "token 'hello' has id 2000000000, expected 0 to"},
    {"id_twice", R"("hello":259)", R"("hello":258)", kBad, "tokens 'hell' and 'hello' both have id 258"},
    {"token_twice", R"("hello":259)", R"("hello":259,"hello":261)", kBad, "token 'hello' has ids 259 and 261"},
    {"empty_token", R"("hello":259)", R"("":259)", kBad, "model.vocab has an empty token"},
    {"missing_byte", R"("Ġ":32,)", "", kBad, "model.vocab lacks 'Ġ', the spelling of byte 32"},
    {"merges", R"("merges":[)", R"("merges":{)", kBad, "the file is no JSON"},
    {"merge_of_three", R"("h e")", R"("h e l")", kBad, "model.merges[0] is no merge"},
    {"merge_of_one", R"("l l")", R"(["l"])", kBad, "model.merges[1] is no merge"},
    {"merge_side", R"("h e")", R"("h éé")", kBad, "model.merges[0]: its right side 'éé' is not in the vocabulary"},
    {"merge_result", R"("h e")", R"("h x")", kBad, "model.merges[0]: its result 'hx' is not in the vocabulary"},
    {"added_flag", R"("lstrip":false,)", "", kBad, "added_tokens[0] has no 'lstrip'"},
    {"added_key", R"("lstrip":false,)", R"("strip":false,)", kNo, "added_tokens[0] has 'strip'"},
    {"added_empty", R"("content":"<think>")", R"("content":"")", kBad, "added_tokens[1].content is empty"},
    {"added_id", R"({"id":301)", R"({"id":300)", kBad, "tokens '<|end|>' and '<think>' both have id 300"},
    {"added_elsewhere", R"("content":"<think>")", R"("content":"hello")", kBad, "token 'hello' has ids 259 and 301"},
    {"special_byte", R"({"id":300,"content":"<|end|>")", R"({"id":33,"content":"!")", kBad, "'!' is special"},
};

class TokenizerFileRejects : public testing::TestWithParam<Reject> {};

TEST_P(TokenizerFileRejects, InOneSentence) {
  const Reject& reject = GetParam();
  std::string json = TinyTokenizer{}.json();
  const size_t at = json.find(reject.from);
  ASSERT_NE(at, json.npos) << reject.from;
  json.replace(at, reject.from.size(), reject.to);
  try {
    Tokenizer::from_json(json);
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.code(), reject.code) << what;
    EXPECT_TRUE(what.starts_with("tokenizer.json: ")) << what;
    EXPECT_NE(what.find(reject.message), what.npos) << what;
    EXPECT_EQ(what.find('\n'), what.npos) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, TokenizerFileRejects, testing::ValuesIn(kRejects),
                         [](const auto& row) { return row.param.name; });

TEST(TokenizerFile, AcceptsTheFileThatTheTableChanges) {
  EXPECT_NO_THROW(Tokenizer::from_json(TinyTokenizer{}.json()));
}

TEST(TokenizerFile, WhatATrainerSetForItsBatchesChangesNoId) {
  std::string json = TinyTokenizer{}.json();
  const auto put = [&json](std::string_view from, std::string_view to) {
    const size_t at = json.find(from);
    ASSERT_NE(at, json.npos) << from;
    json.replace(at, from.size(), to);
  };
  put(R"("truncation":null)", R"("truncation":{"max_length":2,"strategy":"LongestFirst","stride":0})");
  put(R"("padding":null)", R"("padding":{"strategy":{"Fixed":64},"pad_id":300})");
  put(R"("dropout":null)", R"("dropout":0.0)");
  const std::string text = "hello hello hello, he";
  EXPECT_EQ(Tokenizer::from_json(json).encode(text), Tokenizer::from_json(TinyTokenizer{}.json()).encode(text));
}

// SmolLM2's and DeepSeek-Coder's step; the ids are those of tokenizers 0.23.3.
TEST(TokenizerFile, DigitsStandAloneOrInRunsOfTheirOwn) {
  TinyTokenizer tiny;
  tiny.words = {"12", "a1", "Â½", "Â½b", "1b"};
  tiny.merges = R"(["1 2", "a 1", "Â ½", "Â½ b", "1 b"])";
  const auto ids = [&tiny](std::string_view flag, std::string_view text) {
    std::string json = tiny.json();
    const size_t at = json.find(R"({"type":"Split")"), end = json.find(R"(},{"type":"ByteLevel")");
    json.replace(at, end - at, str(R"({"type":"Digits")", flag));
    return Tokenizer::from_json(json).encode(text);
  };
  using DigitIds = std::vector<int32_t>;
  for (const std::string_view each : {R"(,"individual_digits":true)"}) {
    EXPECT_EQ(ids(each, "a12b"), (DigitIds{97, 49, 50, 98}));
    EXPECT_EQ(ids(each, "a1½b"), (DigitIds{97, 49, 258, 98}));
    EXPECT_EQ(ids(each, "12 12"), (DigitIds{49, 50, 32, 49, 50}));
  }
  for (const std::string_view runs : {R"(,"individual_digits":false)", ""}) {
    EXPECT_EQ(ids(runs, "a12b"), (DigitIds{97, 256, 98}));
    EXPECT_EQ(ids(runs, "a1½b"), (DigitIds{97, 49, 258, 98}));
    EXPECT_EQ(ids(runs, "12 12"), (DigitIds{256, 32, 256}));
    EXPECT_EQ(ids(runs, "1b"), (DigitIds{49, 98}));
  }
}

// With a token for every byte nothing is unknown.
TEST(TokenizerFile, AnUnknownTokenOfBytesIsNeverMade) {
  std::string json = TinyTokenizer{}.json();
  for (const auto& [from, to] : {std::pair<std::string, std::string>{R"("unk_token":null)", R"("unk_token":"<|end|>")"},
                                 {R"("fuse_unk":false)", R"("fuse_unk":true)"}}) {
    json.replace(json.find(from), from.size(), to);
  }
  EXPECT_EQ(Tokenizer::from_json(json).encode("hello \xff"),
            Tokenizer::from_json(TinyTokenizer{}.json()).encode("hello \xff"));
}

TEST(TokenizerFile, NamesTheFileThatIsMissing) {
  try {
    Tokenizer::from_file("/nowhere/tokenizer.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_STREQ(error.what(), "/nowhere/tokenizer.json: cannot be opened: No such file or directory");
  }
}

TEST(TokenizerFile, WhatIsNoRegularFileIsRefusedBeforeItIsRead) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "tokenizer_file_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder / "folder" / "tokenizer.json");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);  // whose reader would wait for a writer
  std::filesystem::create_symlink("loop", folder / "loop");
  const auto refusal = [](auto&& read) { return testing_support::refusal_of(read).sentence; };
  const std::string name = folder.string();
  EXPECT_EQ(refusal([&] { Tokenizer::from_directory(folder / "folder"); }),
            name + "/folder/tokenizer.json: is a directory, expected a file");
  EXPECT_EQ(refusal([&] { Tokenizer::from_file(name + "/pipe"); }),
            name + "/pipe: is no regular file, expected a file");
  EXPECT_EQ(refusal([&] { Tokenizer::from_directory(folder / "loop"); }),
            name + "/loop/tokenizer.json: cannot be opened: Too many levels of symbolic links");
  std::filesystem::remove_all(folder);
}

TEST(TokenizerFile, SaysWhyAFileThatIsThereCannotBeOpened) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "where no file can be opened, the sanitizer cannot look at objects";
#endif
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "tokenizer_file_test.json";
  std::ofstream(file) << TinyTokenizer{}.json();
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none{0, files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const testing_support::Refusal refusal = testing_support::refusal_of([&] { Tokenizer::from_file(file.string()); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(refusal.sentence, file.string() + ": cannot be opened: Too many open files");
  std::filesystem::remove(file);
}

TEST(TokenizerFile, ASentencePieceModelAloneIsRefusedByName) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "sentence_piece_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.model") << "pieces";
  const auto refusal = [&] { return testing_support::refusal_of([&] { Tokenizer::from_directory(folder); }); };
  EXPECT_EQ(refusal().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refusal().sentence, folder.string() +
                                    "/tokenizer.model: a SentencePiece model, which is not read; expected "
                                    "tokenizer.json beside it, as save_pretrained of transformers' fast "
                                    "tokenizers writes it");
  std::ofstream(folder / "tokenizer.json") << TinyTokenizer{}.json();
  EXPECT_EQ(refusal().sentence, "");
  std::filesystem::remove_all(folder);
}

// As a download leaves it: tokenizer.json, or one of the files that are there in its place.
TEST(TokenizerFile, ABrokenDownloadIsToldApart) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "broken_download_test";
  std::filesystem::create_directories(folder);
  const auto refusal = [&] { return testing_support::refusal_of([&] { Tokenizer::from_directory(folder); }); };
  std::ofstream(folder / "merges.txt") << "#version: 0.2\n";
  std::ofstream(folder / "vocab.json") << "<!DOCTYPE html>";
  EXPECT_EQ(refusal().sentence,
            folder.string() + "/vocab.json: begins with '<!DOCTYPE': a web page was saved in place of the file");
  std::ofstream(folder / "tokenizer.json") << "version https://git-lfs.github.com/spec/v1\n";
  EXPECT_EQ(refusal().sentence, folder.string() +
                                    "/tokenizer.json: is a pointer of Git LFS and not the file itself, "
                                    "which `git lfs pull` fetches");
  std::ofstream(folder / "tokenizer.json") << TinyTokenizer{}.json().substr(0, 300);
  EXPECT_EQ(refusal().sentence, folder.string() +
                                    "/tokenizer.json: ends within its JSON text, after 300 bytes: the "
                                    "download is not complete, or a bracket is missing");
  EXPECT_EQ(refusal().code, ErrorCode::kModelFile);
  std::filesystem::remove_all(folder);
}

TEST(TokenizerFile, CutAnywhereIsRefused) {
  const std::string json = TinyTokenizer{}.json();
  for (size_t size = 0; size < json.size(); size += 37)
    EXPECT_THROW(Tokenizer::from_json(json.substr(0, size)), Error) << size;
}

// A file of Gemma's kind: characters and bytes to fall back on.
std::string gemma_json() {
  std::string vocab = R"("<unk>":0)";
  for (int byte = 0; byte < 256; ++byte)
    vocab += str(",", json_string(fallback_spelling(static_cast<uint8_t>(byte))), ":", byte + 1);
  vocab += R"(,"▁":257,"a":258,"▁a":259,"é":260)";
  return str(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{"type":"Replace",)",
             R"("pattern":{"String":" "},"content":"▁"},"pre_tokenizer":{"type":"Split","pattern":{"String":" "},)",
             R"("behavior":"MergedWithPrevious","invert":false},"post_processor":null,"decoder":{"type":"Sequence",)",
             R"("decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},)",
             R"({"type":"Fuse"}]},"model":{"type":"BPE","dropout":null,"unk_token":"<unk>","fuse_unk":true,)",
             R"("byte_fallback":true,"ignore_merges":false,"vocab":{)", vocab, R"(},"merges":["▁ a"]}})");
}

TEST(TokenizerFile, CharactersFallBackOnTheirBytes) {
  const Tokenizer tokenizer = Tokenizer::from_json(gemma_json());
  EXPECT_EQ(tokenizer.encode("a aéß"), (std::vector<int32_t>{258, 259, 260, 0xC3 + 1, 0x9F + 1}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a aéß")), "a aéß");
  // A run that is no UTF-8 as a whole is U+FFFD for each byte, also where a part of it would be.
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{258, 'b' + 1, 0xC3 + 1, 259}), "a\uFFFD\uFFFD a");
}

TEST(TokenizerFile, an_id_without_a_token_split_a_run) {  // of fallback bytes, although it spells nothing
  const Tokenizer tokenizer = Tokenizer::from_json(gemma_json());
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{0xC3 + 1, 261, 0x9F + 1}), "ß");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{0xC3 + 1, -1, 'b' + 1}), "\uFFFD\uFFFD");
}

TEST(TokenizerFile, WhatGemmasFilesDoNotHaveIsRefused) {
  const std::vector<Reject> rejects = {
      {"", R"("normalizer":{"type":"Replace","pattern":{"String":" "})",
       R"("normalizer":{"type":"Replace","pattern":{"Regex":" "})", kNo, "normalizer.pattern has 'Regex'"},
      {"", R"("content":"▁"},"pre)", R"("content":" ▁"},"pre)", kNo, "pre_tokenizer.behavior is 'MergedWithPrevious'"},
      {"", R"({"type":"Fuse"})", R"({"type":"Strip"})", kNo, "decoder.decoders[2] is 'Strip'"},
      {"", R"("<0x41>":66)", R"("<0xXX>":66)", kBad, "model.vocab lacks '<0x41>', the spelling of byte 65"},
  };
  for (const Reject& reject : rejects) {
    std::string json = gemma_json();
    const size_t at = json.find(reject.from);
    ASSERT_NE(at, json.npos) << reject.from;
    json.replace(at, reject.from.size(), reject.to);
    try {
      Tokenizer::from_json(json);
      FAIL() << "accepted: " << reject.to;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), reject.code) << error.what();
      EXPECT_NE(std::string(error.what()).find(reject.message), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace headrace
