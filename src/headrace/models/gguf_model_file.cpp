#include "headrace/models/gguf_model_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "headrace/chat/template_files.h"
#include "headrace/core/printable.h"
#include "headrace/models/gguf_model_keys.h"
#include "headrace/models/model_registry.h"
#include "headrace/text/gguf_tokenizer.h"
#include "headrace/text/tokenizer_file.h"
#include "headrace/weights/checkpoint_files.h"
#include "headrace/weights/gguf_tensors.h"
#include "headrace/weights/weight_scope.h"

namespace headrace {
namespace {

constexpr std::string_view kFileType = "general.file_type", kQuantisation = "general.quantization_version";

// As llama.cpp numbers them.
uint32_t file_type_of(const GgufTarget& target) {
  if (const DType* const floats = std::get_if<DType>(&target)) return *floats == DType::kF16 ? 1 : 32;
  switch (std::get<QuantPreset>(target)) {
    case QuantPreset::kQ8_0: return 7;
    case QuantPreset::kQ4_K_M: return 15;
    case QuantPreset::kQ5_K_M: return 17;
    case QuantPreset::kQ6_K: return 18;
  }
  return 0;
}

void add_formats(const GgufTarget& target, std::vector<GgufKey>& keys) {
  keys.push_back({std::string(kFileType), file_type_of(target)});
  keys.push_back({std::string(kQuantisation), uint32_t{2}});
}

// --- From a model's directory ---

void add_sampling(const JsonValue& generation, std::vector<GgufKey>& keys) {
  constexpr std::array<std::pair<const char*, const char*>, 4> kNumbers = {
      {{"temperature", "temp"}, {"top_p", "top_p"}, {"min_p", "min_p"}, {"repetition_penalty", "penalty_repeat"}}};
  for (const auto& [name, key] : kNumbers) {
    const JsonValue* const stated = generation.find(name);
    if (stated != nullptr) keys.push_back({str("general.sampling.", key), static_cast<float>(stated->as_float())});
  }
  if (const JsonValue* const top_k = generation.find("top_k")) {
    keys.push_back({"general.sampling.top_k", static_cast<int32_t>(top_k->as_int(0, 1 << 30))});
  }
}

std::optional<uint32_t> stated_id(const ModelDescription& model, const char* key, int64_t vocab) {
  for (const JsonValue* owner : {&text_config_of(model.config), &model.config, model.generation_config()}) {
    const JsonValue* stated = owner == nullptr ? nullptr : owner->find(key);
    if (stated != nullptr && stated->is_array() && !stated->as_array().empty()) stated = &stated->as_array().front();
    if (stated != nullptr && stated->is_int() && stated->as_int(0) < vocab) {
      return static_cast<uint32_t>(stated->as_int());
    }
  }
  return std::nullopt;
}

std::optional<uint32_t> id_of(const TokenizerFile& tokenizer, const std::optional<TemplateFile>& chat,
                              std::string_view name) {
  if (!chat) return std::nullopt;
  const auto text = std::ranges::find(chat->tokens, name, &std::pair<std::string, std::string>::first);
  if (text == chat->tokens.end()) return std::nullopt;
  const auto token = std::ranges::find(tokenizer.added_tokens, text->second, &AddedToken::content);
  if (token == tokenizer.added_tokens.end()) return std::nullopt;
  return static_cast<uint32_t>(token->id);
}

// The token that ends texts is the one that the template calls so, else the configuration's first.
void add_end_tokens(const ModelConfig& config, std::optional<uint32_t> eos, std::vector<GgufKey>& keys) {
  constexpr std::array<const char*, 3> kKeys = {"eos", "eot", "eom"};
  std::vector<uint32_t> ids(config.eos_ids.begin(), config.eos_ids.end());
  const auto first = eos ? std::ranges::find(ids, *eos) : ids.end();
  if (first != ids.end()) std::rotate(ids.begin(), first, first + 1);
  HR_REQUIRE(ids.size() <= kKeys.size(), ErrorCode::kUnsupported, "the model has ", ids.size(),
             " tokens that end a text; GGUF files hold at most ", kKeys.size());
  for (size_t i = 0; i < ids.size(); ++i) keys.push_back({str("tokenizer.ggml.", kKeys[i], "_token_id"), ids[i]});
}

void add_tokens(const ModelDescription& model, const ModelConfig& config, std::vector<GgufKey>& keys) {
  const TokenizerFile tokenizer = read_tokenizer_files(model.directory);
  const std::optional<TemplateFile> chat = read_template_file(model.directory, "default");
  for (GgufKey& key : gguf_tokenizer_keys(tokenizer, config.vocab)) keys.push_back(std::move(key));
  const auto eos = id_of(tokenizer, chat, "eos_token");
  add_end_tokens(config, eos ? eos : stated_id(model, "eos_token_id", config.vocab), keys);
  if (const auto bos = stated_id(model, "bos_token_id", config.vocab); bos && tokenizer.prefix_ids.empty()) {
    keys.push_back({"tokenizer.ggml.bos_token_id", *bos});
  }
  if (const auto padding = stated_id(model, "pad_token_id", config.vocab)) {
    keys.push_back({"tokenizer.ggml.padding_token_id", *padding});
  }
  if (chat) keys.push_back({"tokenizer.chat_template", chat->source});
}

GgufTensorToWrite declared(const GgufExport& tensor, const GgufType& type) {
  GgufTensorToWrite out{.name = tensor.name, .type = &type, .dims = {}};
  for (int i = tensor.shape.rank(); i > 0; --i) out.dims.push_back(static_cast<uint64_t>(tensor.shape[i - 1]));
  return out;
}

void warn_of_small_blocks(const std::vector<GgufExport>& tensors, const QuantModel& facts,
                          const GgufFileOptions& options) {
  const auto* const preset = std::get_if<QuantPreset>(&options.target);
  if (preset == nullptr || !options.log) return;
  size_t num_matrices = 0, num_changed = 0;
  for (const GgufExport& tensor : tensors) {
    const Shape whole = {256, 256};
    const auto wanted = tensor.shape.rank() < 2 ? std::nullopt : block_format_for(tensor.name, whole, *preset, facts);
    num_matrices += wanted ? 1 : 0;
    num_changed += block_format_for(tensor.name, tensor.shape, *preset, facts) != wanted ? 1 : 0;
  }
  if (num_changed == 0) return;
  options.log(LogLevel::kWarning,
              str(num_changed, " of ", num_matrices, " matrices have rows that 256 does not divide: ",
                  "they take blocks of 32 or stay floats, which need more bits"));
}

void write_file(const std::vector<GgufExport>& tensors, GgufContents contents, const QuantModel& facts,
                const std::filesystem::path& file, const GgufFileOptions& options) {
  for (const GgufExport& tensor : tensors) {
    contents.tensors.push_back(declared(tensor, gguf_type_for(tensor, options.target, facts)));
  }
  warn_of_small_blocks(tensors, facts, options);
  const auto all = static_cast<int64_t>(contents.file_bytes());
  int64_t done = 0;
  GgufWriter writer(file, contents);
  for (size_t i = 0; i < tensors.size(); ++i) {
    write_tensor(tensors[i], *contents.tensors[i].type, writer, options.threads, [&](int64_t bytes) {
      done += bytes;
      if (options.progress) options.progress(tensors[i].name, done, all);
    });
  }
  writer.finish();
}

void warn_of_value_heads(const ModelConfig& config, const LogCallback& log) {
  const GatedDeltaNetConfig& gdn = config.gdn;
  if (gdn.head_k_dim == gdn.head_v_dim || !log) return;
  log(LogLevel::kWarning, str("heads of Gated DeltaNet have ", gdn.head_k_dim, " values in keys and ", gdn.head_v_dim,
                              " in values: headrace runs such a file, llama.cpp does not"));
}

void write_from_directory(const ModelDescription& model, const std::filesystem::path& file,
                          const GgufFileOptions& options) {
  const ModelConfig config = stated_config(model, {.log = options.log});
  GgufContents contents{.keys = gguf_model_keys(config), .tensors = {}};
  warn_of_value_heads(config, options.log);
  contents.keys.push_back({"general.type", std::string("model")});
  contents.keys.push_back({"general.name", gguf_model_name(model.directory)});
  add_formats(options.target, contents.keys);
  if (model.generation_config() != nullptr) add_sampling(*model.generation_config(), contents.keys);
  add_tokens(model, config, contents.keys);
  refuse_quantised_config(model.config);
  Checkpoint checkpoint =
      Checkpoint::open(model.directory, {.threads = options.threads, .guard = options.guard, .log = options.log});
  const QuantModel facts = quant_model_of(config);
  if (config.tied_head) check_tied_head(find_text_weights(checkpoint), {config.vocab, config.hidden});
  std::vector<GgufExport> tensors = gguf_exports(checkpoint, gguf_sizes_of(config), facts.head);
  if (std::vector<float> divisors = gguf_rope_divisors(config); !divisors.empty()) {
    const auto count = static_cast<int64_t>(divisors.size());
    tensors.push_back({.name = "rope_freqs.weight", .shape = {count}, .parts = {}, .made = std::move(divisors)});
  }
  write_file(tensors, std::move(contents), facts, file, options);
}

// --- From a GGUF file ---

// Integers keep the type that llama.cpp reads them as: unsigned ones of 32 bits, arrays of signed ones.
GgufKeyValue copied(const GgufValue& value) {
  struct Copy {
    GgufKeyValue operator()(int64_t number) const {
      if (number >= 0 && number <= std::numeric_limits<uint32_t>::max()) return static_cast<uint32_t>(number);
      return number;
    }
    GgufKeyValue operator()(uint64_t number) const { return number; }
    GgufKeyValue operator()(double number) const { return static_cast<float>(number); }
    GgufKeyValue operator()(bool flag) const { return flag; }
    GgufKeyValue operator()(std::string_view text) const { return std::string(text); }
    GgufKeyValue operator()(const GgufArray& array) const { return std::visit(*this, array); }
    GgufKeyValue operator()(const std::vector<int64_t>& numbers) const {
      constexpr auto kFits = [](int64_t n) { return n == static_cast<int32_t>(n); };
      if (!std::ranges::all_of(numbers, kFits)) return numbers;
      return std::vector<int32_t>(numbers.begin(), numbers.end());
    }
    GgufKeyValue operator()(const std::vector<double>& numbers) const {
      return std::vector<float>(numbers.begin(), numbers.end());
    }
    GgufKeyValue operator()(const std::vector<std::string_view>& texts) const {
      return std::vector<std::string>(texts.begin(), texts.end());
    }
  };
  return std::visit(Copy(), value);
}

std::vector<GgufKey> copied_keys(const GgufHeader& header, const GgufTarget& target) {
  std::vector<GgufKey> keys;
  for (const std::string_view name : header.keys()) {
    const bool is_changed =
        name == kFileType || name == kQuantisation || name == "general.alignment" || name.starts_with("split.");
    if (!is_changed) keys.push_back({std::string(name), copied(*header.value(name))});
  }
  add_formats(target, keys);
  return keys;
}

std::vector<GgufExport> copied_tensors(const std::vector<GgufFile>& files) {
  std::vector<GgufExport> tensors;
  for (const GgufFile& file : files) {
    for (const GgufTensor& tensor : file.header().tensors()) {
      StoredTensor stored = stored_tensor_of(file, tensor);
      HR_REQUIRE(stored.dtype, ErrorCode::kUnsupported, file.header().file(), ": tensor '", printable(tensor.name),
                 "' is ", tensor.type->name, ", expected floats: a file that is quantised is not quantised again");
      const Shape shape = stored.shape;
      tensors.push_back({.name = std::string(tensor.name), .shape = shape, .parts = {std::move(stored)}});
    }
  }
  return tensors;
}

void write_from_gguf(const ModelDescription& model, const std::filesystem::path& file, const GgufFileOptions& options) {
  const std::vector<GgufFile> files = open_gguf(model.directory, options.guard);
  write_file(copied_tensors(files), {.keys = copied_keys(files.front().header(), options.target), .tensors = {}},
             quant_model_of(stated_config(model, {.log = options.log})), file, options);
}

}  // namespace

std::string gguf_model_name(const std::filesystem::path& model) {
  if (is_gguf_path(model)) return model.stem().string();
  const std::string repository = repository_name(model);  // "models--Qwen--Qwen3-0.6B" of a commit in the cache
  return repository.starts_with("models--") ? repository.substr(repository.rfind("--") + 2) : repository;
}

void write_gguf(const ModelDescription& model, const std::filesystem::path& file, const GgufFileOptions& options) {
  if (is_gguf_path(model.directory)) return write_from_gguf(model, file, options);
  write_from_directory(model, file, options);
}

}  // namespace headrace
