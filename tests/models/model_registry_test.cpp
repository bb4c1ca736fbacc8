// Loading: which architectures are known, and that a checkpoint holds the model's tensors, all of them and no others.
#include "headrace/models/model_registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>

#include "headrace/core/human_bytes.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/weights/checkpoint.h"
#include "headrace/weights/config_file.h"
#include "headrace/weights/safetensors_file.h"
#include "support/host_memory.h"
#include "support/refusal.h"
#include "support/safetensors_writer.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

using testing_support::golden_folder;

// The tensors of a golden checkpoint, to be written again with changes.
std::vector<test::NamedTensor> tensors_of(const SafetensorsFile& file, std::vector<Tensor>& owned) {
  std::vector<test::NamedTensor> tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    Tensor copy(*entry.dtype->dtype, Shape(std::vector<int64_t>(entry.shape.begin(), entry.shape.end())));
    std::memcpy(copy.data(), file.data(entry), static_cast<size_t>(copy.bytes()));
    tensors.push_back({entry.name, copy});
    owned.push_back(std::move(copy));
  }
  return tensors;
}

std::string load_error(const std::string& family, const std::function<void(std::vector<test::NamedTensor>&)>& change) {
  const test::TempDir directory;
  std::filesystem::copy_file(golden_folder(family) / "config.json", directory / "config.json");
  const SafetensorsFile file(golden_folder(family) / "model.safetensors");
  std::vector<Tensor> owned;
  std::vector<test::NamedTensor> tensors = tensors_of(file, owned);
  change(tensors);
  test::write_safetensors(directory / "model.safetensors", tensors);
  try {
    load_model(directory.path(), {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ModelRegistry, WhatAStepReadsAndARowMultipliesCountsTheExpertsThatAreChosen) {
  for (const char* family : {"qwen3_moe", "diffusion_gemma", "qwen3"}) {
    SCOPED_TRACE(family);
    const auto model = load_model(golden_folder(family), {});
    const ModelInfo& info = model->info();
    const auto weights = static_cast<double>(info.weight_bytes - info.gathered_bytes),
               experts = static_cast<double>(info.experts.bytes);
    EXPECT_NEAR(info.bytes_read(1e6), weights, 1e-6 * weights);
    EXPECT_DOUBLE_EQ(info.bytes_read(1), info.bytes_multiplied());
    EXPECT_DOUBLE_EQ(info.bytes_read(0), weights - experts);
    const double share = static_cast<double>(info.experts.per_token) / info.experts.count;
    EXPECT_DOUBLE_EQ(info.bytes_multiplied(), weights - experts * (1 - share));
    if (std::string_view(family) == "diffusion_gemma") {
      EXPECT_EQ(info.gathered_bytes, 0);  // its embedding is its head
    }
    if (std::string_view(family) == "qwen3") {
      EXPECT_EQ(experts, 0);
    } else {
      EXPECT_GT(experts, 0.1 * weights);
      EXPECT_LT(experts, weights);
      EXPECT_LT(share, 1);
    }
  }
  const auto model = load_model(golden_folder("qwen3_moe"), {});
  EXPECT_EQ(model->info().gathered_bytes, 272 * 96 * 2);
  constexpr int64_t kLayers = 2, kExperts = 8, kHidden = 96, kInner = 48;  // its config.json; stored in bfloat16
  EXPECT_EQ(model->info().experts.bytes, kLayers * kExperts * 3 * kHidden * kInner * 2);
}

TEST(ModelRegistry, ABlockSizeInTheNameOfADirectoryOrOfACachedRepositoryIsTaken) {
  const test::TempDir directory;
  std::ifstream config(golden_folder("sdar") / "config.json");
  std::string text(std::istreambuf_iterator<char>(config), {});
  text.replace(text.find("\"block_size\""), 12, "\"not_said\"");
  for (const char* path : {"SDAR-4B-Chat-b16", "SDAR-4B-Chat-b16/", "models--org--SDAR-4B-Chat-b16/snapshots/0a1b2c"}) {
    std::filesystem::create_directories(directory / path);
    test::write_file(directory / path / "config.json", text);
    EXPECT_EQ(stated_info(read_description(directory / path, 1), {}).diffusion->block_size, 16) << path;
  }
  std::string told;
  test::write_file(directory / "config.json", text);
  load_model(directory.path(), {.random_weights = 1, .log = [&told](LogLevel, std::string_view line) { told = line; }});
  EXPECT_NE(told.find("states no block_size"), std::string::npos) << told;
  told.clear();
  load_model(directory.path(),
             {.block_size = 8, .random_weights = 1, .log = [&told](LogLevel, std::string_view line) { told = line; }});
  EXPECT_EQ(told.find("states no block_size"), std::string::npos) << told;  // the caller states it
}

TEST(ModelRegistry, AMaskThatTheCallerStatesIsTakenBeforeTheFamilysIsHeldAgainstTheVocabulary) {
  const test::TempDir directory;
  test::write_file(directory / "config.json",
                   R"({"architectures":["SDARForCausalLM"],"hidden_size":16,"vocab_size":259,"num_hidden_layers":1,)"
                   R"("num_attention_heads":4,"num_key_value_heads":4,"head_dim":4,"intermediate_size":16})");
  const auto mask = [&](std::optional<int32_t> stated) {
    return stated_info(read_description(directory.path(), 1), {.mask_token_id = stated}).diffusion->mask_token_id;
  };
  EXPECT_EQ(mask(258), 258);
  const auto refused = testing_support::refusal_of([&] { mask({}); });
  EXPECT_EQ(refused.code, ErrorCode::kModelFile);
  EXPECT_NE(refused.sentence.find("has no mask_token_id, and the family's, 151669, is outside a vocabulary of 259; "
                                  "--mask-token-id states another"),
            std::string::npos)
      << refused.sentence;
}

TEST(ModelRegistry, WithoutAStatedDTypeActivationsHaveTheFiles) {
  const test::TempDir directory;
  const SafetensorsFile file(golden_folder("qwen3") / "model.safetensors");
  std::ifstream config(golden_folder("qwen3") / "config.json");
  std::string text(std::istreambuf_iterator<char>(config), {});
  text.replace(text.find("dtype\""), 6, "not_said\"");
  test::write_file(directory / "config.json", text);
  for (const DType stored : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<Tensor> owned;
    std::vector<test::NamedTensor> tensors = tensors_of(file, owned);
    for (test::NamedTensor& each : tensors) {
      Tensor as_stored(stored, each.tensor.shape());
      for (int64_t i = 0; i < as_stored.numel(); ++i) set_element(as_stored, i, element_as_double(each.tensor, i));
      each.tensor = as_stored;
      owned.push_back(std::move(as_stored));
    }
    test::write_safetensors(directory / "model.safetensors", tensors);
    const DType computed = stored == DType::kF16 ? DType::kF32 : stored;
    EXPECT_EQ(load_model(directory.path(), {})->info().dtype, computed);
    EXPECT_EQ(load_model(directory.path(), {.dtype = DType::kBF16})->info().dtype, DType::kBF16);
  }
  EXPECT_EQ(load_model(directory.path(), {.random_weights = 1})->info().dtype, DType::kBF16);
}

TEST(ModelRegistry, WeightsThatTheConfigCallsQuantisedAreRefusedBeforeTheyAreOpened) {
  const test::TempDir directory;  // without weights
  std::ifstream config(golden_folder("qwen3") / "config.json");
  std::string text(std::istreambuf_iterator<char>(config), {});
  text.insert(text.find('{') + 1, R"("quantization_config": {"quant_method": "awq"},)");
  test::write_file(directory / "config.json", text);
  const ModelDescription model = read_description(directory.path());
  for (const testing_support::Refusal& refused : {testing_support::refusal_of([&] { load_model(model, {}); }),
                                                  testing_support::refusal_of([&] { model_summary(model, {}); })}) {
    EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
    EXPECT_NE(refused.sentence.find("weights quantised by 'awq' are not supported"), std::string::npos);
  }
}

TEST(ModelRegistry, ScalesOfAnEightBitCacheComeWithTheCheckpoint) {
  const test::TempDir directory;
  std::ifstream config(golden_folder("qwen3") / "config.json");
  std::string text(std::istreambuf_iterator<char>(config), {});
  text.insert(text.find('{') + 1, R"("quantization_config": {"quant_method": "compressed-tensors", "config_groups": {},
                                     "kv_cache_scheme": {"num_bits": 8, "type": "float"}},)");
  test::write_file(directory / "config.json", text);
  const SafetensorsFile file(golden_folder("qwen3") / "model.safetensors");
  std::vector<Tensor> owned;
  std::vector<test::NamedTensor> tensors = tensors_of(file, owned);
  const Tensor k(DType::kF32, {1}), v(DType::kF32, {1});
  set_element(k, 0, 0.25), set_element(v, 0, 0.5);
  tensors.push_back({"model.layers.1.self_attn.k_scale", k});
  tensors.push_back({"model.layers.1.self_attn.v_scale", v});
  test::write_safetensors(directory / "model.safetensors", tensors);
  const auto model = load_model(directory.path(), {});
  ASSERT_EQ(model->info().kv_scales.size(), 1u);
  EXPECT_EQ(model->info().kv_scales[0].layer_id, 1);
  EXPECT_EQ(model->info().kv_scales[0].k_scale, 0.25f);
  EXPECT_EQ(model->info().kv_scales[0].v_scale, 0.5f);
}

TEST(ModelRegistry, HeadsThatTheKernelsLackAreRefusedWhenTheirLayerIsMade) {
  OpSet small = cpu::select_kernel_set();
  small.most_head_dim = 8;
  for (const char* family : {"qwen3", "diffusion_gemma"}) {
    try {
      load_model(golden_folder(family), {.ops = &small});
      FAIL() << family;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("has sizes up to 8"), std::string::npos) << error.what();
    }
  }
}

TEST(ModelRegistry, ActivationsOfADTypeThatTheKernelsLackAreRefusedWhenTheirLayerIsMade) {
  for (const char* family : {"qwen3", "qwen3_next", "diffusion_gemma"}) {
    const auto refused =
        testing_support::refusal_of([&] { load_model(golden_folder(family), {.dtype = DType::kF64}); });
    EXPECT_EQ(refused.code, ErrorCode::kUnsupported) << family;
    EXPECT_TRUE(refused.sentence.starts_with("layer 0: activations of float64; the kernel set '")) << refused.sentence;
    EXPECT_TRUE(refused.sentence.ends_with("' has float32, bfloat16 and float16")) << refused.sentence;
  }
}

TEST(ModelRegistry, MoreExpertsOrIdsThanTheKernelsHaveAreRefusedWhenTheModelIsMade) {
  OpSet few_experts = cpu::select_kernel_set(), few_ids = few_experts;
  few_experts.most_experts = 2, few_ids.most_vocab = 8;
  for (const char* family : {"qwen3_moe", "diffusion_gemma"}) {
    const auto experts = testing_support::refusal_of([&] { load_model(golden_folder(family), {.ops = &few_experts}); });
    EXPECT_EQ(experts.code, ErrorCode::kUnsupported);
    EXPECT_NE(experts.sentence.find("chooses among up to 2"), std::string::npos) << experts.sentence;
    const auto ids = testing_support::refusal_of([&] { load_model(golden_folder(family), {.ops = &few_ids}); });
    EXPECT_EQ(ids.code, ErrorCode::kUnsupported);
    EXPECT_NE(ids.sentence.find("draws from up to 8"), std::string::npos) << ids.sentence;
  }
}

// A device that has no memory at all.
class FullDevice final : public testing_support::HostMemory {
 public:
  Device device() const override { return {DeviceType::kCUDA, 0}; }
  void* allocate(size_t bytes) override {
    throw Error(ErrorCode::kOutOfMemory, str("cuda:0: could not allocate ", bytes, " bytes; 7 of 9 are free"));
  }
};

TEST(ModelRegistry, AFullDeviceSaysWhatIsNeededWhatIsThereAndWhatToTryOfRandomWeightsToo) {
  FullDevice full;
  for (const auto& random : {std::optional<uint64_t>(), std::optional<uint64_t>(1)}) {
    const auto refused = testing_support::refusal_of(
        [&] { load_model(golden_folder("qwen3"), {.runtime = &full, .random_weights = random}); });
    EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
    const std::string& said = refused.sentence;
    const std::filesystem::path folder = golden_folder("qwen3");
    const int64_t stored = Checkpoint::open(folder, {}).stored_bytes();
    const std::string needed = random ? str("loading random weights for ", folder.string())
                                      : str("loading the weights in ", folder.string(), " needs ", human_bytes(stored));
    EXPECT_TRUE(said.starts_with(needed + ": cuda:0: could not allocate ")) << said;
    EXPECT_TRUE(said.ends_with(" bytes; 7 of 9 are free; try another device (--device)")) << said;
  }
}

TEST(ModelRegistry, AConvolutionThatTheKernelsLackIsRefusedWhenItsLayerIsMade) {
  const test::TempDir directory;
  std::ifstream config(golden_folder("qwen3_5") / "config.json");
  std::string text(std::istreambuf_iterator<char>(config), {});
  const std::string width = R"("linear_conv_kernel_dim": 4)";
  ASSERT_NE(text.find(width), std::string::npos);
  text.replace(text.find(width), width.size(), R"("linear_conv_kernel_dim": 20)");
  test::write_file(directory / "config.json", text);
  const auto refused = testing_support::refusal_of([&] { load_model(directory.path(), {.random_weights = 1}); });
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.sentence.find("a Gated DeltaNet convolution of 20 taps"), std::string::npos) << refused.sentence;
}

TEST(ModelRegistry, AnUnknownArchitectureIsNamedWithThoseThatAreBuilt) {
  const test::TempDir directory;
  test::write_file(directory / "config.json", R"({"architectures":["MambaForCausalLM"]})");
  try {
    load_model(directory.path(), {});
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("MambaForCausalLM"), std::string::npos);
    for (const std::string_view name : architecture_names()) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << name;
    }
  }
}

TEST(ModelRegistry, AClassOfTheCheckpointsOwnCodeGoesBeforeTheArchitectureItDerivesFrom) {
  const test::TempDir directory;
  const auto architecture = [&](const std::string& more) {
    test::write_file(directory / "config.json",
                     R"({"architectures":["LlamaForCausalLM"],"hidden_size":64,"vocab_size":256,"num_hidden_layers":1,)"
                     R"("num_attention_heads":4,"intermediate_size":96,"rope_theta":5e5)" +
                         more + "}");
    return load_model(directory.path(), {.random_weights = 1})->info().architecture;
  };
  EXPECT_EQ(architecture(""), "LlamaForCausalLM");
  EXPECT_EQ(architecture(R"(,"auto_map":{"AutoModelForCausalLM":"modeling_x.StableDiffcoderForCausalLM"})"),
            "StableDiffcoderForCausalLM");
  EXPECT_EQ(architecture(R"(,"auto_map":{"AutoConfig":"configuration_x.XConfig","AutoModel":"modeling_x.MyLlama"})"),
            "LlamaForCausalLM");
}

TEST(ModelRegistry, TheFamilysOwnEndTokensJoinThoseOfTheFiles) {
  const test::TempDir directory;
  test::write_file(directory / "config.json",
                   R"({"architectures":["DreamModel"],"hidden_size":16,"vocab_size":152064,"num_hidden_layers":1,)"
                   R"("num_attention_heads":4,"num_key_value_heads":4,"intermediate_size":16,"eos_token_id":151643})");
  const auto model = load_model(directory.path(), {.random_weights = 1});
  EXPECT_EQ(model->info().eos_ids, (std::vector<int32_t>{151643, 151645, 151667}));
}

TEST(ModelRegistry, AnUntiedHeadMustBeStored) {
  const auto drop_head = [](auto& tensors) {
    std::erase_if(tensors, [](auto& t) { return t.name == "lm_head.weight"; });
  };
  EXPECT_EQ(load_error("llama", [](auto&) {}), "");
  EXPECT_NE(load_error("llama", drop_head).find("lm_head.weight"), std::string::npos);
}

// Readers disagree about which of two heads counts: transformers 5 takes the stored one, others the embedding.
TEST(ModelRegistry, AHeadBesideATiedEmbeddingMustBeTheSame) {
  Tensor head;
  const auto error_with = [&](const std::string& family, const std::string& embedding, double change) {
    return load_error(family, [&](std::vector<test::NamedTensor>& tensors) {
      const auto found = std::ranges::find(tensors, embedding, &test::NamedTensor::name);
      head = Tensor(found->tensor.dtype(), found->tensor.shape());
      std::memcpy(head.data(), found->tensor.data(), static_cast<size_t>(head.bytes()));
      set_element(head, head.numel() - 1, element_as_double(head, head.numel() - 1) + change);
      tensors.push_back({"lm_head.weight", head});
    });
  };
  for (const auto& [family, embedding] : {std::pair("qwen2", "model.embed_tokens.weight"),
                                          std::pair("diffusion_gemma", "model.decoder.embed_tokens.weight")}) {
    EXPECT_EQ(error_with(family, embedding, 0), "");
    const std::string error = error_with(family, embedding, 1);
    EXPECT_NE(error.find("lm_head.weight' differs"), std::string::npos) << family << ": " << error;
    EXPECT_NE(error.find("tie_word_embeddings"), std::string::npos) << error;
  }
}

// An expert's would be met by the first token that chooses it, others by the first request.
TEST(ModelRegistry, WeightsThatNoKernelReadsAreRefusedByNameWhenTheyAreLoaded) {
  Tensor wide;
  for (const auto& [family, name] :
       {std::pair("qwen3", "model.layers.1.self_attn.q_proj.weight"), std::pair("qwen3", "model.norm.weight"),
        std::pair("qwen3_moe", "model.layers.0.mlp.experts.7.up_proj.weight"),
        std::pair("qwen3_next", "model.layers.0.linear_attn.in_proj_qkvz.weight")}) {
    for (const DType dtype : {DType::kF64, DType::kI32, DType::kU8}) {
      const std::string error = load_error(family, [&, widened = name](std::vector<test::NamedTensor>& tensors) {
        const auto found = std::ranges::find(tensors, widened, &test::NamedTensor::name);
        wide = Tensor::zeros(dtype, found->tensor.shape());
        found->tensor = wide;
      });
      EXPECT_NE(error.find(name), std::string::npos) << error;
      EXPECT_NE(error.find("expected float32, bfloat16 or float16"), std::string::npos) << error;
    }
  }
}

TEST(ModelRegistry, AModelThatSaysItIsNotCausalIsRefusedUnlessItIsADiffusionModel) {
  const test::TempDir directory;
  const auto refusal = [&](const std::string& architecture) {
    test::write_file(
        directory / "config.json",
        R"({"architectures":[")" + architecture +
            R"("],"hidden_size":64,"vocab_size":256,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":4,)"
            R"("intermediate_size":96,"rope_theta":1e6,"mask_token_id":5,"is_causal":false})");
    return testing_support::refusal_of([&] { load_model(directory.path(), {.random_weights = 1}); }).sentence;
  };
  EXPECT_NE(refusal("Qwen3ForCausalLM").find("is_causal"), std::string::npos);
  EXPECT_EQ(refusal("DreamModel"), "");
}

TEST(ModelRegistry, EveryMissingTensorIsAnError) {
  for (const char* family : {"qwen2", "qwen3_5"}) {
    const SafetensorsFile file(golden_folder(family) / "model.safetensors");
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto drop = [&](auto& tensors) { std::erase_if(tensors, [&](auto& t) { return t.name == entry.name; }); };
      EXPECT_NE(load_error(family, drop), "") << "without " << entry.name;
    }
  }
}

TEST(ModelRegistry, ATensorThatNoLayerReadsIsAnErrorUnlessItIsVisionOrMTP) {
  const Tensor extra = Tensor::zeros(DType::kF32, {2});
  const auto with = [&](const std::string& name) {
    return load_error("qwen3_5", [&](auto& tensors) { tensors.push_back({name, extra}); });
  };
  EXPECT_NE(with("model.layers.0.mlp.extra.weight").find("model.layers.0.mlp.extra.weight"), std::string::npos);
  EXPECT_EQ(with("mtp.norm.weight"), "");
  EXPECT_EQ(with("model.visual.patch_embed.weight"), "");
}

TEST(ModelRegistry, AConfigThatDisagreesWithTheTensorsIsRefused) {
  const auto narrow = [](std::vector<test::NamedTensor>& tensors) {
    for (test::NamedTensor& t : tensors) {
      if (t.name == "model.layers.1.mlp.up_proj.weight") t.tensor = t.tensor.slice(0, 159);
    }
  };
  const std::string error = load_error("qwen3", narrow);
  EXPECT_NE(error.find("model.layers.1.mlp.up_proj.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("159"), std::string::npos) << error;
}

// A golden config.json with another value for one key, beside the tensors that it was made for.
std::string lie_error(const std::string& key, const std::string& value) {
  const test::TempDir directory;
  std::ifstream in(golden_folder("qwen3") / "config.json");
  std::string config((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t from = config.find("\"" + key + "\": ") + key.size() + 4;
  config.replace(from, config.find_first_of(",}\n", from) - from, value);
  test::write_file(directory / "config.json", config);
  std::filesystem::copy_file(golden_folder("qwen3") / "model.safetensors", directory / "model.safetensors");
  try {
    load_model(directory.path(), {});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModelFile) << key << " " << value;
    EXPECT_TRUE(std::string_view(error.what()).starts_with(directory.path().string())) << error.what();
    return error.what();
  }
  return "";
}

TEST(ModelRegistry, EveryLieOfTheConfigIsRefused) {
  struct Lie {
    std::string key, value, named;
  };
  const std::vector<Lie> lies = {{"num_hidden_layers", "1000000000", "num_hidden_layers"},
                                 {"num_hidden_layers", "0", "num_hidden_layers"},
                                 {"num_hidden_layers", "3", "layer_types"},
                                 {"hidden_size", "97", "embed_tokens"},
                                 {"hidden_size", "0", "hidden_size"},
                                 {"head_dim", "0", "head_dim"},
                                 {"head_dim", "16", "q_proj"},
                                 {"num_attention_heads", "3", "num_attention_heads"},
                                 {"num_attention_heads", "8", "q_proj"},
                                 {"num_key_value_heads", "1", "k_proj"},
                                 {"vocab_size", "271", "embed_tokens"},
                                 {"vocab_size", "-1", "vocab_size"},
                                 {"intermediate_size", "161", "mlp"},
                                 {"rope_theta", "0", "theta"},
                                 {"rope_theta", "-10000.0", "theta"},
                                 {"hidden_size", "1e400", "config.json"}};
  for (const Lie& lie : lies) {
    const std::string error = lie_error(lie.key, lie.value);
    EXPECT_NE(error.find(lie.named), std::string::npos) << lie.key << " = " << lie.value << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_EQ(lie_error("vocab_size", "272"), "") << "the truth is refused";
}

TEST(ModelRegistry, ReportsWhatThePoolsNeed) {
  const std::unique_ptr<Model> model = load_model(golden_folder("qwen3_5_moe_released"), {});
  EXPECT_EQ(model->info().architecture, "Qwen3_5MoeForConditionalGeneration");
  EXPECT_EQ(model->info().full_attn_layer_ids, std::vector<int32_t>{3});
  EXPECT_EQ(model->info().num_gdn_layers, 3);
  EXPECT_EQ(model->info().gdn.num_v_heads, 4);
  EXPECT_EQ(model->info().vocab_size, 272);
  EXPECT_EQ(model->info().dtype, DType::kF32);
}

TEST(ModelRegistry, OtherFormatsAreRefusedByNameBeforeAFileThatTheyLack) {
  for (const auto& [file, expected] : std::vector<std::pair<std::string, std::string>>{
           {"model-q4.gguf", "is a GGUF file"}, {"pytorch_model.bin", "pickle weights are not supported"}}) {
    const test::TempDir directory;
    test::write_file(directory / file, "x");
    try {
      load_model(directory.path(), {});
      FAIL() << file << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(ModelRegistry, RandomWeightsNeedNoFileButTheConfig) {
  const test::TempDir directory;
  std::filesystem::copy_file(golden_folder("qwen3_moe") / "config.json", directory / "config.json");
  EXPECT_GT(load_model(directory.path(), {.random_weights = 1})->info().weight_bytes, 0);
}

TEST(ModelRegistry, ASummaryHasTheNumbersOfTheLoadedModel) {
  for (const char* family : {"llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe_released",
                             "sdar", "llada2", "llada_moe", "diffusion_gemma"}) {
    SCOPED_TRACE(family);
    const ModelInfo info = model_summary(read_description(golden_folder(family)), {}).info;
    const std::unique_ptr<Model> model = load_model(golden_folder(family), {});
    const ModelInfo& loaded = model->info();
    EXPECT_EQ(info.dtype, loaded.dtype);
    EXPECT_EQ(info.full_attn_layer_ids, loaded.full_attn_layer_ids);
    ASSERT_EQ(info.attention_kinds.size(), loaded.attention_kinds.size());
    ASSERT_FALSE(info.attention_kinds.empty());
    EXPECT_EQ(info.attention_kinds[0].layer_id, loaded.full_attn_layer_ids[0]);
    EXPECT_EQ(KVPool::bytes_for({.groups = info.kv_groups, .num_pages = 3}),
              KVPool::bytes_for({.groups = loaded.kv_groups, .num_pages = 3}));
    EXPECT_EQ(info.num_gdn_layers, loaded.num_gdn_layers);
    EXPECT_NEAR(info.bytes_read(1), loaded.bytes_read(1), 0.02 * loaded.bytes_read(1));
    EXPECT_NEAR(info.bytes_read(8), loaded.bytes_read(8), 0.02 * loaded.bytes_read(8));
  }
}

TEST(ModelRegistry, ASummaryCountsTheParametersOfTheTextModel) {
  const ModelSummary hybrid =
      model_summary(read_description(testing_support::source_tree() / "demo_models" / "fairy-hybrid"), {});
  EXPECT_EQ(hybrid.parameters, 11857952);
  EXPECT_EQ(hybrid.info.weight_bytes, 2 * hybrid.parameters) << "bfloat16";
}

}  // namespace
}  // namespace headrace
