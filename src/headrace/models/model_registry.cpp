#include "headrace/models/model_registry.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "headrace/attention/backend_registry.h"
#include "headrace/core/device_runtime.h"
#include "headrace/core/memory_need.h"
#include "headrace/core/printable.h"
#include "headrace/gguf/gguf_file.h"
#include "headrace/models/causal_lm.h"
#include "headrace/models/diffusion_gemma.h"
#include "headrace/models/families.h"
#include "headrace/models/gguf_model_keys.h"
#include "headrace/models/model_gemms.h"
#include "headrace/models/reference_defaults.h"
#include "headrace/weights/checkpoint_files.h"

namespace headrace {
namespace {

std::unique_ptr<Model> make_causal_lm(const JsonValue&, const ModelConfig& config, Checkpoint checkpoint,
                                      const LayerContext& context) {
  return std::make_unique<CausalLM>(config, std::move(checkpoint), context);
}

ModelInfo stated_causal_lm_info(const JsonValue&, const ModelConfig& config, DType dtype) {
  return causal_lm_info(config, dtype);
}

std::vector<ModelGemm> gemms_of_causal_lm(const JsonValue&, const ModelConfig& config, DType dtype) {
  return causal_lm_gemms(config, dtype);
}

struct ModelRow {
  std::string_view architecture;
  ModelConfig (*config)(const JsonValue&);
  std::unique_ptr<Model> (*make)(const JsonValue&, const ModelConfig&, Checkpoint,
                                 const LayerContext&) = make_causal_lm;
  void (*generation)(const JsonValue&, ModelConfig&) = nullptr;  // reads generation_config.json besides EOS ids
  // Reads the repository's name; returns a warning for the log.
  std::optional<std::string> (*named)(const JsonValue&, std::string_view name, ModelConfig&) = nullptr;
  ModelInfo (*info)(const JsonValue&, const ModelConfig&, DType) = stated_causal_lm_info;
  std::vector<ModelGemm> (*gemms)(const JsonValue&, const ModelConfig&, DType) = gemms_of_causal_lm;
};

// A new family is one file and one row.
constexpr std::array kModels = {
    ModelRow{"LlamaForCausalLM", llama_config},
    ModelRow{"Qwen2ForCausalLM", qwen2_config},
    ModelRow{"Qwen3ForCausalLM", qwen3_config},
    ModelRow{"Qwen3MoeForCausalLM", qwen3_moe_config},
    ModelRow{"Qwen3NextForCausalLM", qwen3_next_config},
    ModelRow{"Qwen3_5ForCausalLM", qwen3_5_config},
    ModelRow{"Qwen3_5MoeForCausalLM", qwen3_5_moe_config},
    ModelRow{"Qwen3_5ForConditionalGeneration", qwen3_5_config},
    ModelRow{"Qwen3_5MoeForConditionalGeneration", qwen3_5_moe_config},
    ModelRow{"DiffusionGemmaForBlockDiffusion", diffusion_gemma_config, make_diffusion_gemma, read_canvas_schedule,
             nullptr, stated_diffusion_gemma_info, stated_diffusion_gemma_gemms},
    ModelRow{"DreamModel", dream_config},
    ModelRow{"Fast_dLLM_QwenForCausalLM", fast_dllm_v2_config},
    ModelRow{"LLaDAModelLM", llada_config},
    ModelRow{"LLaDAMoEModelLM", llada_moe_config},
    ModelRow{"LLaDA2MoeModelLM", llada2_config, make_causal_lm, nullptr, read_llada2_name},
    ModelRow{"SDARForCausalLM", sdar_config, make_causal_lm, nullptr, read_sdar_name},
    ModelRow{"SDARMoeForCausalLM", sdar_moe_config, make_causal_lm, nullptr, read_sdar_name},
    ModelRow{"StableDiffcoderForCausalLM", stable_diffcoder_config},
};

// Returns the class names in config.json. Diffusion checkpoints ship their own code, and some state the architecture
// that it derives from, so the class in auto_map comes first: otherwise a diffusion Llama would be decoded causally.
std::vector<std::string> class_names(const JsonValue& root) {
  std::vector<std::string> names;
  const JsonValue* own_code = root.find("auto_map");
  for (const char* key : {"AutoModelForCausalLM", "AutoModel"}) {
    const JsonValue* stated = own_code != nullptr ? own_code->find(key) : nullptr;
    if (stated == nullptr || !stated->is_string()) continue;
    const std::string& path = stated->as_string();  // module.Class
    names.push_back(path.substr(path.rfind('.') + 1));
  }
  for (const std::string& name : root.at("architectures").as_strings()) names.push_back(name);
  return names;
}

const ModelRow& find(const JsonValue& root) {
  const std::vector<std::string> names = class_names(root);
  std::string built, asked;
  for (const std::string& name : names) {
    for (const ModelRow& row : kModels) {
      if (row.architecture == name) return row;
    }
    asked += (asked.empty() ? "" : ", ") + name;
  }
  for (const ModelRow& row : kModels) built += (built.empty() ? "" : ", ") + std::string(row.architecture);
  throw Error(ErrorCode::kUnsupported,
              str(root.where(), " names the architecture '", printable(asked), "'; built are: ", built));
}

// A model's family and configuration.
struct Stated {
  const ModelRow& row;
  ModelConfig config;
  std::optional<std::string> surprise = {};  // for the log
};

// The family's default is an id of its released vocabulary. An id set by the caller is checked later, with the other
// decoding options (decoding_checks.h).
void set_mask_token(const JsonValue& root, const std::optional<int32_t>& stated, ModelConfig& config) {
  std::optional<int32_t>& mask = config.diffusion->mask_token_id;
  if (mask && stated) mask = stated;
  HR_REQUIRE(!mask || stated || *mask < config.vocab, ErrorCode::kModelFile, root.where(),
             " has no mask_token_id, and the family's, ", mask.value_or(0), ", is outside a vocabulary of ",
             config.vocab, "; --mask-token-id states another");
}

Stated read_stated(const ModelDescription& model, const ModelOptions& options) {
  const JsonValue& root = model.config;
  const ModelRow& row = find(root);
  ModelConfig config = row.config(root);
  config.architecture = row.architecture;
  auto surprise =
      row.named != nullptr ? row.named(root, repository_name(model.directory), config) : std::optional<std::string>();
  if (options.block_size) surprise.reset();
  if (config.diffusion) {
    config.diffusion->reference = reference_defaults(row.architecture);
    set_mask_token(root, options.mask_token_id, config);
  }
  check(config);
  HR_REQUIRE(config.diffusion || text_config_of(root).bool_or("is_causal", true), ErrorCode::kUnsupported, root.where(),
             " has is_causal false, which is not built for ", config.architecture);
  if (row.generation != nullptr && model.generation_config() != nullptr) {
    row.generation(*model.generation_config(), config);
  }
  config.eos_ids = eos_ids_of(model, config.vocab, std::move(config.eos_ids), options.log);
  return {row, std::move(config), surprise};
}

// Returns config.json's dtype, else the files', else bfloat16. float16 is computed in float32.
DType computed_dtype(const JsonValue& root, const ModelConfig& config, const Checkpoint& checkpoint,
                     const ModelOptions& options) {
  const auto stored = config.stored_dtype ? config.stored_dtype : checkpoint.float_dtype();
  if (stored != DType::kF16) return stored.value_or(DType::kBF16);
  if (options.log) {
    options.log(LogLevel::kWarning, str(root.where(), ": weights of float16 are computed with in float32"));
  }
  return DType::kF32;
}

Checkpoint checkpoint_of(const ModelDescription& model, const ModelOptions& options) {
  if (options.random_weights) {
    return Checkpoint::random(*options.random_weights, options.context.threads, options.progress);
  }
  refuse_quantised_config(model.config);
  return Checkpoint::open(
      model.directory,
      {.progress = options.progress, .threads = options.context.threads, .guard = options.guard, .log = options.log});
}

void refuse_blocks(const Checkpoint& checkpoint, QuantPreset preset) {
  for (const std::string& name : checkpoint.names()) {
    const StoredTensor& stored = checkpoint.stored(name);
    HR_REQUIRE(!stored.format, ErrorCode::kInvalidArgument, "quantize is ", name_of(preset),
               ", expected none: ", *stored.file, " is quantised already, its tensor '", printable(name), "' is ",
               layout_of(*stored.format).name);
  }
}

// Weights of blocks cannot be reordered row by row when a layer is made. An adapter names the grouped tensors.
void quantize_weights(QuantPreset preset, Checkpoint& checkpoint, ModelConfig& config) {
  const bool is_grouped = config.gdn.layout == GatedDeltaNetConfig::Layout::kGrouped;
  if (is_grouped && !checkpoint.has_adapter()) {
    if (!checkpoint.is_random()) checkpoint.separate_projections(gguf_sizes_of(config));
    config.gdn.layout = GatedDeltaNetConfig::Layout::kSeparate;
  }
  checkpoint.quantize(preset, quant_model_of(config));
}

std::unique_ptr<Model> load(const ModelDescription& model, const ModelOptions& options) {
  auto [row, config, surprise] = read_stated(model, options);
  const bool is_on_cpu = options.runtime == nullptr || options.runtime->device().type == DeviceType::kCPU;
  HR_REQUIRE(!options.quantize || is_on_cpu, ErrorCode::kUnsupported,
             "weights are quantised at load on a CPU alone, not on ", to_string(options.runtime->device()));
  if (surprise && options.log) options.log(LogLevel::kWarning, *surprise);
  Checkpoint checkpoint = checkpoint_of(model, options);
  const OpSet* ops = options.ops != nullptr ? options.ops : &backend_ops("auto", cpu_runtime().device(), {});
  const LayerContext context{
      .ops = ops,
      .op = options.context,
      .dtype = options.dtype ? *options.dtype : computed_dtype(model.config, config, checkpoint, options),
      .runtime = options.runtime != nullptr ? options.runtime : &cpu_runtime()};
  if (options.quantize && !checkpoint.is_random()) refuse_blocks(checkpoint, *options.quantize);
  checkpoint.rename(config.names);
  if (options.adapter) checkpoint.attach(LoraAdapter::open(*options.adapter, options.guard), options.context.threads);
  if (options.quantize) quantize_weights(*options.quantize, checkpoint, config);
  checkpoint.place_on(*context.runtime);
  MemoryNeed need{.what = str("loading the weights in ", model.directory.string()),
                  .advice = "another device (--device)"};
  if (options.random_weights) {
    need.what = str("loading random weights for ", model.directory.string());  // their size is known only afterwards
  } else {
    need.bytes = checkpoint.stored_bytes();
  }
  return with_need(need, [&, &family = row, &stated = config] {
    return family.make(model.config, stated, std::move(checkpoint), context);
  });
}

// Adds the directory to errors about config.json, which layers do not know. A GGUF file stands for its own.
template <class Read>
auto naming_the_directory(const std::filesystem::path& directory, const Read& read) {
  try {
    return read();
  } catch (const Error& e) {
    constexpr std::string_view kConfig = "config.json";
    const std::string_view what = e.what();
    if (!what.starts_with(kConfig)) throw;
    if (is_gguf_path(directory)) throw Error(e.code(), str(directory.string(), what.substr(kConfig.size())));
    throw Error(e.code(), (directory / what).string());
  }
}

// Recognises the names of all families.
bool is_embedding(std::string_view name) {
  return name.ends_with("embed_tokens.weight") || name.ends_with("word_embeddings.weight") ||
         name.ends_with("wte.weight");
}

// Adds the sizes from tensors' names, shapes and bytes. Experts under other names than the families' count as read in
// every step.
ModelSummary counted(const Checkpoint& checkpoint, const ModelConfig& config, ModelSummary summary) {
  ModelInfo& info = summary.info;
  info.weight_bytes = info.gathered_bytes = info.experts.bytes = 0;
  for (const std::string& name : checkpoint.names()) {
    if (is_of_other_part(name)) continue;
    const StoredTensor& stored = checkpoint.stored(name);
    const auto bytes = static_cast<int64_t>(stored.data.size());
    summary.parameters += stored.shape.numel();
    info.weight_bytes += bytes;
    if (name.find(".experts.") != std::string::npos) info.experts.bytes += bytes;
    if (!config.tied_head && is_embedding(name)) info.gathered_bytes += bytes;
  }
  return summary;
}

}  // namespace

std::vector<std::string_view> architecture_names() {
  std::vector<std::string_view> names;
  names.reserve(std::size(kModels));
  for (const ModelRow& row : kModels) names.push_back(row.architecture);
  return names;
}

ModelInfo stated_info(const ModelDescription& model, const ModelOptions& options) {
  return naming_the_directory(model.directory, [&] {
    const Stated stated = read_stated(model, options);
    const DType dtype = options.dtype.value_or(stated.config.stored_dtype.value_or(DType::kBF16));
    return stated.row.info(model.config, stated.config, dtype);
  });
}

std::string repository_name(const std::filesystem::path& directory) {
  std::filesystem::path full = std::filesystem::absolute(directory / "").lexically_normal().parent_path();
  if (full.parent_path().filename() == "snapshots") full = full.parent_path().parent_path();
  return full.filename().string();
}

ModelConfig stated_config(const ModelDescription& model, const ModelOptions& options) {
  return naming_the_directory(model.directory, [&] { return read_stated(model, options).config; });
}

std::vector<ModelGemm> stated_gemms(const ModelDescription& model, const ModelOptions& options) {
  return naming_the_directory(model.directory, [&] {
    const Stated stated = read_stated(model, options);
    const DType dtype = options.dtype.value_or(stated.config.stored_dtype.value_or(DType::kBF16));
    return stated.row.gemms(model.config, stated.config, dtype);
  });
}

ModelSummary model_summary(const ModelDescription& model, const ModelOptions& options) {
  return naming_the_directory(model.directory, [&] {
    const Stated stated = read_stated(model, options);
    const Checkpoint checkpoint = checkpoint_of(model, options);
    const DType dtype =
        options.dtype ? *options.dtype : computed_dtype(model.config, stated.config, checkpoint, options);
    return counted(checkpoint, stated.config, {.info = stated.row.info(model.config, stated.config, dtype)});
  });
}

std::unique_ptr<Model> load_model(const ModelDescription& model, const ModelOptions& options) {
  return naming_the_directory(model.directory, [&] { return load(model, options); });
}

std::unique_ptr<Model> load_model(const std::filesystem::path& directory, const ModelOptions& options) {
  return load_model(read_description(directory, options.random_weights), options);
}

}  // namespace headrace
