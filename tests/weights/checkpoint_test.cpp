// A model directory: one file, shards, and what is turned away.
#include "headrace/weights/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "headrace/weights/checkpoint_files.h"
#include "headrace/weights/model_description.h"
#include "support/host_memory.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::TempDir;
using test::write_file;
using test::write_safetensors;

void expect_error(ErrorCode code, std::string_view expected, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no error, expected: " << expected;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

Tensor counted(DType dtype, const Shape& shape) {
  Tensor out(dtype, shape);
  for (int64_t i = 0; i < out.numel(); ++i) set_element(out, i, static_cast<double>(i + 1));
  return out;
}

TEST(Checkpoint, HandsOutTensorsOfEveryDType) {
  const TempDir dir;
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64, DType::kU8}) {
    write_safetensors(dir / "model.safetensors", {{"w", counted(dtype, {2, 3}).view()}});
    Checkpoint checkpoint = Checkpoint::open(dir.path());
    const TensorView w = checkpoint.tensor("w", {2, 3});
    EXPECT_TRUE(w.dtype() == dtype);
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(element_as_double(w, i), static_cast<double>(i + 1));
  }
}

TEST(Checkpoint, DataStartThatIsNotAlignedIsCopied) {
  const TempDir dir;
  const Tensor w = counted(DType::kF32, {3});
  for (int padding = 0; padding < 4; ++padding) {
    write_safetensors(dir / "model.safetensors", {{"w", w}}, padding);
    Checkpoint checkpoint = Checkpoint::open(dir.path());
    const TensorView view = checkpoint.tensor("w", {3});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data()) % 4, 0u);
    EXPECT_EQ(checkpoint.tensor("w", {3}).data(), view.data());
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(element_as_double(view, i), static_cast<double>(i + 1));
  }
}

// Is not the CPU by name, and counts its memory.
class PretendedDevice final : public testing_support::HostMemory {
 public:
  Device device() const override { return {DeviceType::kCUDA, 0}; }
  void* allocate(size_t bytes) override {
    held += bytes;
    return HostMemory::allocate(bytes);
  }
  void release(void* memory, size_t bytes) noexcept override {
    held -= bytes;
    HostMemory::release(memory, bytes);
  }

  size_t held = 0;
};

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

TEST(Checkpoint, CopiesThatArePlacedTogetherLieSideBySideAndTakeNoMoreMemory) {
  const TempDir dir;
  const Tensor q = counted(DType::kBF16, {8, 64}), k = counted(DType::kBF16, {4, 64}),
               v = counted(DType::kBF16, {2, 64});
  write_safetensors(dir / "model.safetensors", {{"q", q}, {"k", k}, {"v", v}});
  PretendedDevice device;
  {
    Checkpoint checkpoint = Checkpoint::open(dir.path());
    checkpoint.place_on(device);
    checkpoint.place_together(std::vector<Checkpoint::Part>{{"q", {8, 64}}, {"k", {4, 64}}, {"v", {2, 64}}});
    const TensorView there[] = {checkpoint.tensor("q", {8, 64}), checkpoint.tensor("k", {4, 64}),
                                checkpoint.tensor("v", {2, 64})};
    EXPECT_EQ(there[1].data(), static_cast<char*>(there[0].data()) + there[0].bytes());
    EXPECT_EQ(there[2].data(), static_cast<char*>(there[1].data()) + there[1].bytes());
    EXPECT_TRUE(same_bytes(there[0], q) && same_bytes(there[1], k) && same_bytes(there[2], v));
    EXPECT_TRUE(there[1].device() == device.device());
    EXPECT_EQ(device.held, static_cast<size_t>(q.bytes() + k.bytes() + v.bytes()));
    EXPECT_NO_THROW(checkpoint.require_all_used());
  }
  EXPECT_EQ(device.held, 0u);
}

// An odd length, another dtype, a copy that is there already: tensors as they would be without.
TEST(Checkpoint, WhatCannotLieTogetherIsPlacedAlone) {
  const TempDir dir;
  const Tensor a = counted(DType::kBF16, {4, 64}), odd = counted(DType::kBF16, {3, 7}),
               wide = counted(DType::kF32, {4, 64});
  write_safetensors(dir / "model.safetensors", {{"a", a}, {"odd", odd}, {"wide", wide}, {"b", a}});
  PretendedDevice device;
  Checkpoint checkpoint = Checkpoint::open(dir.path());
  checkpoint.place_on(device);
  const void* before = checkpoint.tensor("b", {4, 64}).data();
  using Parts = std::vector<Checkpoint::Part>;
  checkpoint.place_together(Parts{{"a", {4, 64}}, {"odd", {3, 7}}});
  checkpoint.place_together(Parts{{"a", {4, 64}}, {"wide", {4, 64}}});
  checkpoint.place_together(Parts{{"a", {4, 64}}, {"b", {4, 64}}});
  EXPECT_EQ(device.held, static_cast<size_t>(a.bytes()));
  EXPECT_EQ(checkpoint.tensor("b", {4, 64}).data(), before);
  EXPECT_TRUE(same_bytes(checkpoint.tensor("a", {4, 64}), a) && same_bytes(checkpoint.tensor("odd", {3, 7}), odd) &&
              same_bytes(checkpoint.tensor("wide", {4, 64}), wide));
  expect_error(ErrorCode::kModelFile, "has shape [4, 64], expected [5, 64]", [&] {
    checkpoint.place_together(Parts{{"a", {5, 64}}});
  });
}

TEST(Checkpoint, OnTheCpuTensorsThatArePlacedTogetherStayWhereTheyAre) {
  const TempDir dir;
  const Tensor a = counted(DType::kBF16, {4, 64});
  write_safetensors(dir / "model.safetensors", {{"a", a}, {"between", a}, {"b", a}});
  Checkpoint checkpoint = Checkpoint::open(dir.path());
  const void* before = checkpoint.tensor("b", {4, 64}).data();
  checkpoint.place_together(std::vector<Checkpoint::Part>{{"a", {4, 64}}, {"b", {4, 64}}});
  EXPECT_EQ(checkpoint.tensor("b", {4, 64}).data(), before);
  EXPECT_EQ(static_cast<const char*>(before) - static_cast<char*>(checkpoint.tensor("a", {4, 64}).data()),
            2 * a.bytes());
}

TEST(Checkpoint, MissingShapeAndDTypeErrorsNameFileAndTensor) {
  const TempDir dir;
  write_file(dir / "model.safetensors",
             test::safetensors_bytes(R"({"w":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", "xx"));
  Checkpoint checkpoint = Checkpoint::open(dir.path());
  expect_error(ErrorCode::kModelFile, "model.safetensors: tensor 'v' is missing", [&] { checkpoint.tensor("v", {2}); });
  expect_error(ErrorCode::kModelFile, "model.safetensors: tensor 'w' has shape [2], expected [3]",
               [&] { checkpoint.tensor("w", {3}); });
  expect_error(ErrorCode::kUnsupported, "model.safetensors: tensor 'w' has dtype F8_E4M3",
               [&] { checkpoint.tensor("w", {2}); });
}

TEST(Checkpoint, UnusedTensorsAreAnErrorUnlessSkippedByName) {
  const TempDir dir;
  const Tensor w = counted(DType::kF32, {1});
  write_safetensors(dir / "model.safetensors", {{"a", w},
                                                {"b", w},
                                                {"c", w},
                                                {"mtp.fc.weight", w},
                                                {"model.visual.x", w},
                                                {"model.layers.0.rotary_emb.inv_freq", w}});
  std::vector<std::string> messages;
  Checkpoint checkpoint = Checkpoint::open(
      dir.path(), {.log = [&](LogLevel, std::string_view message) { messages.emplace_back(message); }});
  checkpoint.tensor("a", {1});
  expect_error(ErrorCode::kModelFile, "model.safetensors: tensor 'b' is unknown to this model, and 1 more",
               [&] { checkpoint.require_all_used(); });
  checkpoint.tensor("b", {1}), checkpoint.tensor("c", {1});
  EXPECT_NO_THROW(checkpoint.require_all_used());
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_TRUE(messages[0].ends_with("'model.layers.0.rotary_emb.inv_freq' is not needed and not read, and 2 more"))
      << messages[0];
  expect_error(ErrorCode::kModelFile, "and 1 more", [&] { checkpoint.require_all_used({}); });
}

// Two shards, "a" in one.safetensors and "b" in two.safetensors; the index is the row's.
class Shards : public testing::Test {
 protected:
  Shards() {
    write_safetensors(dir_ / "one.safetensors", {{"a", a_}});
    write_safetensors(dir_ / "two.safetensors", {{"b", a_}});
  }
  void index(std::string_view map) {
    write_file(dir_ / "model.safetensors.index.json", str(R"({"metadata":{},"weight_map":)", map, "}"));
  }
  void expect_refused(std::string_view map, std::string_view expected) {
    index(map);
    expect_error(ErrorCode::kModelFile, expected, [&] { Checkpoint::open(dir_.path()); });
  }

  TempDir dir_;
  Tensor a_ = counted(DType::kF32, {2});
};

TEST_F(Shards, AreReadAsOne) {
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  std::string progress;
  Checkpoint checkpoint =
      Checkpoint::open(dir_.path(), {.progress = [&](std::string_view what, int64_t done, int64_t total) {
                         progress += str(what, " ", done, "/", total, ";");
                       }});
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(checkpoint.stored_bytes(), 16);
  Checkpoint moved = std::move(checkpoint);
  EXPECT_EQ(element_as_double(moved.tensor("b", {2}), 1), 2.0);
  moved.tensor("b", {2});
  moved.tensor("a", {2});
  EXPECT_EQ(progress, "b 8/16;a 16/16;") << "bytes, once for each tensor";
  EXPECT_EQ(moved.shape_of("a"), Shape({2}));
}

TEST_F(Shards, ShardNamesStayInTheDirectory) {
  for (const char* name :
       {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", ".", "", "a\\u0000b", "a\\\\b"})
    expect_refused(str(R"({"a":")", name, "\"}"), "is no plain file name in this directory");
  expect_refused(str(R"({"a":")", std::string(256, 'x'), "\"}"),
                 str("the shard name '", std::string(80, 'x'), "…' is no plain file name"));
}

TEST_F(Shards, ContradictionsAreErrors) {
  const std::string absent =
      "absent.safetensors: cannot be opened: there is no such file, and model.safetensors.index.json names it";
  expect_refused(R"({"a":"one.safetensors","b":"absent.safetensors"})", absent);
  std::filesystem::create_symlink("nowhere", dir_ / "dangling.safetensors");
  expect_refused(R"({"a":"one.safetensors","b":"dangling.safetensors"})", "dangling" + absent.substr(6));
  expect_refused(R"({"a":1,"a":"absent.safetensors"})", "absent.safetensors: cannot be opened");  // the last one counts
  expect_refused("{}", "weight_map is empty");
  expect_refused("[]", "weight_map is an array, expected an object");
  expect_refused(R"({"a":1})", "weight_map.a is an integer, expected a string");
  write_safetensors(dir_ / "two.safetensors", {{"b", a_}, {"a", a_}});
  expect_refused(R"({"a":"one.safetensors","b":"two.safetensors"})",
                 str("two.safetensors: tensor 'a' is in another shard, too: ", (dir_ / "one.safetensors").string()));
}

// What the files hold counts; the index says which they are. A tensor that it promises is missed when it is asked for,
// and one that it does not list is as unknown as any other.
TEST_F(Shards, AnIndexThatDisagreesWithItsShardsIsRefusedForTensorsThatAreRead) {
  index(R"({"a":"one.safetensors","x":"two.safetensors","mtp.fc.weight":"one.safetensors"})");
  Checkpoint checkpoint = Checkpoint::open(dir_.path());
  checkpoint.tensor("a", {2});
  expect_error(ErrorCode::kModelFile, "two.safetensors: tensor 'x' is listed in the index and not in the file",
               [&] { checkpoint.tensor("x", {2}); });
  expect_error(ErrorCode::kModelFile, "two.safetensors: tensor 'b' is unknown to this model",
               [&] { checkpoint.require_all_used(); });
  checkpoint.tensor("b", {2});
  checkpoint.require_all_used();
}

TEST_F(Shards, PartsThatNoTextModelReadsMayBeMissingFromIndexAndFiles) {
  write_safetensors(dir_ / "two.safetensors", {{"b", a_}, {"mtp.fc.weight", a_}, {"model.visual.patch", a_}});
  write_safetensors(dir_ / "one.safetensors", {{"a", a_}, {"mtp.fc.weight", a_}});
  index(
      R"({"a":"one.safetensors","b":"two.safetensors","model.visual.x":"two.safetensors","mtp.y":"absent.safetensors"})");
  Checkpoint checkpoint = Checkpoint::open(dir_.path());
  checkpoint.tensor("a", {2}), checkpoint.tensor("b", {2});
  checkpoint.require_all_used();
  index(R"({"a":"one.safetensors","b":"two.safetensors","x":"absent.safetensors","mtp.y":"absent.safetensors"})");
  expect_error(ErrorCode::kModelFile, "absent.safetensors: cannot be opened", [&] { Checkpoint::open(dir_.path()); });
}

// transformers' "auto" without a dtype in config.json: safetensors lists names in their order.
TEST_F(Shards, TheDTypeOfTheFilesIsThatOfTheFirstFloatTensorByName) {
  write_safetensors(dir_ / "one.safetensors",
                    {{"c", a_}, {"b", counted(DType::kF16, {2})}, {"a", counted(DType::kI64, {2})}});
  write_safetensors(dir_ / "two.safetensors", {{"0", counted(DType::kBF16, {2})}});
  index(R"({"0":"two.safetensors","a":"one.safetensors","b":"one.safetensors","c":"one.safetensors"})");
  EXPECT_EQ(Checkpoint::open(dir_.path()).float_dtype(), DType::kF16);
  write_safetensors(dir_ / "one.safetensors", {{"a", counted(DType::kI64, {2})}});
  EXPECT_EQ(Checkpoint::open(dir_.path()).float_dtype(), std::nullopt);
  EXPECT_EQ(Checkpoint::random(1, 1).float_dtype(), std::nullopt);
}

TEST(Checkpoint, RulesTurnCommonNamesIntoStoredOnes) {
  static constexpr NameRule kRules[] = {
      {"layers.", "blocks."}, {".self_attn.o_proj.", ".attn_out."}, {".self_attn.", "."}, {"head.", "blocks_out."}};
  EXPECT_EQ(stored_name(kRules, "layers.2.self_attn.o_proj.weight"), "blocks.2.attn_out.weight");
  EXPECT_EQ(stored_name(kRules, "layers.2.self_attn.q_proj.weight"), "blocks.2.q_proj.weight");
  EXPECT_EQ(stored_name({}, "layers.2.w"), "layers.2.w");
  const TempDir dir;
  write_safetensors(dir / "model.safetensors", {{"blocks.0.w", Tensor::zeros(DType::kF32, {3})}});
  Checkpoint checkpoint = Checkpoint::open(dir.path());
  checkpoint.rename(kRules);
  EXPECT_TRUE(checkpoint.has("layers.0.w"));
  EXPECT_EQ(checkpoint.shape_of("layers.0.w"), Shape({3}));
  checkpoint.tensor("layers.0.w", {3});
  checkpoint.require_all_used();
  try {
    checkpoint.tensor("layers.1.w", {3});
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'blocks.1.w'"), std::string::npos) << error.what();
  }
}

TEST(Checkpoint, OtherFormatsAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"model-q4.gguf", "is a GGUF file"},
                                                                  {"pytorch_model.bin", "pickle weights are not"},
                                                                  {"consolidated.pt", "pickle weights are not"},
                                                                  {"model.pth", "pickle weights are not"},
                                                                  {"last.ckpt", "pickle weights are not"}};
  for (const auto& [name, expected] : cases) {
    const TempDir dir;
    write_file(dir / name, "x");
    expect_error(ErrorCode::kUnsupported, expected, [&] { Checkpoint::open(dir.path()); });
    if (name.ends_with(".gguf")) continue;  // a model by itself
    expect_error(ErrorCode::kUnsupported, expected, [&, file = dir / name] { Checkpoint::open(file); });
  }
  const TempDir dir;
  expect_error(ErrorCode::kModelFile, "has neither model.safetensors nor", [&] { Checkpoint::open(dir.path()); });
  expect_error(ErrorCode::kModelFile, "is no directory", [&] { Checkpoint::open(dir / "absent"); });
}

// Ollama's blobs are named by their hash; a directory of downloads may hold nothing but a pickle.
TEST(Checkpoint, OtherFormatsWithoutTheirEndingAreRefusedByTheirFirstBytes) {
  const TempDir dir;
  for (const auto& [begin, expected] :
       {std::pair("GGUF\x03", "a GGUF "), std::pair("PK\x03\x04", "convert them to safetensors")}) {
    write_file(dir / "sha256-0a1b", begin);
    expect_error(ErrorCode::kUnsupported, expected, [&] { Checkpoint::open(dir.path()); });
    expect_error(ErrorCode::kUnsupported, expected, [&] { refuse_other_formats(dir / "sha256-0a1b"); });
    write_file(dir / "model.safetensors", begin);
    expect_error(ErrorCode::kUnsupported, expected, [&] { Checkpoint::open(dir.path()); });
    std::filesystem::remove(dir / "model.safetensors");
  }
  write_file(dir / "sha256-0a1b", "text");
  expect_error(ErrorCode::kModelFile, "is a file, expected the directory",
               [&] { refuse_other_formats(dir / "sha256-0a1b"); });
}

TEST(Checkpoint, ABrokenDownloadIsToldApart) {
  const TempDir dir;
  const auto expect = [&](std::string_view content, std::string_view expected) {
    write_file(dir / "model.safetensors", content);
    expect_error(ErrorCode::kModelFile, expected, [&] { Checkpoint::open(dir.path()); });
  };
  expect("<!DOCTYPE html><html>", "model.safetensors: begins with '<!DOCTYPE': a web page was saved");
  expect(R"({"error":"Entry not found"})", R"(begins with '{"error":"Entry not found"}': a server's error was saved)");
  expect("version https://git-lfs.github.com/spec/v1\noid sha256:0", "is a pointer of Git LFS");
  expect("", "is empty: the download did not begin");
  const std::string whole = test::safetensors_bytes(
      R"({"v":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]},"w":{"dtype":"U8","shape":[4000],"data_offsets":[1000,5000]}})",
      std::string(5000, 'x'));
  expect(whole.substr(0, whole.size() - 2000), "the download is not complete: the file has 3.1 kB of 5.1 kB");
  expect(whole.substr(0, 40), "the file has 40: the download is not complete");
  write_file(dir / "model.safetensors", whole);
  EXPECT_NO_THROW(Checkpoint::open(dir.path()));
  write_file(dir / "config.json", R"({"architectures": ["LlamaForCausalLM"], "vocab)");
  expect_error(ErrorCode::kModelFile,
               "config.json: ends within its JSON text, after 46 bytes: the download is not complete",
               [&] { read_description(dir.path()); });
  write_file(dir / "config.json", "Entry not found");
  expect_error(ErrorCode::kModelFile, "config.json: begins with 'Entry not found': a server's error was saved",
               [&] { read_description(dir.path()); });
}

TEST(Checkpoint, QuantisedWeightsAreRefusedByName) {
  const TempDir dir;
  const Tensor w = counted(DType::kF32, {1});
  for (const char* name : {"l.weight_packed", "l.qweight", "l.qzeros", "l.weight_scale", "l.weight_scale_inv"}) {
    write_safetensors(dir / "model.safetensors", {{name, w}});
    expect_error(ErrorCode::kUnsupported, str("tensor '", name, "' belongs to quantised weights"),
                 [&] { Checkpoint::open(dir.path()); });
  }
  write_safetensors(dir / "model.safetensors", {{"w", w}});
  for (const char* config : {R"({"quantization_config":{"quant_method":"awq"}})",
                             R"({"text_config":{"quantization_config":{"quant_method":"awq"}}})"}) {
    expect_error(ErrorCode::kUnsupported, "weights quantised by 'awq' are not supported",
                 [&] { refuse_quantised_config(JsonValue::parse(config, "config.json")); });
  }
  const std::string cache = R"({"quantization_config":{"quant_method":"compressed-tensors","kv_cache_scheme":{})";
  for (const std::string& config :
       {std::string(R"({"quantization_config":null})"), cache + "}}", cache + R"(,"config_groups":{}}})"}) {
    EXPECT_NO_THROW(refuse_quantised_config(JsonValue::parse(config, "config.json"))) << config;
  }
  const JsonValue both = JsonValue::parse(cache + R"(,"config_groups":{"group_0":{}}}})", "config.json");
  expect_error(ErrorCode::kUnsupported, "weights quantised by 'compressed-tensors' are not supported",
               [&] { refuse_quantised_config(both); });
}

}  // namespace
}  // namespace headrace
