#include "headrace/weights/checkpoint_files.h"

#include <fstream>
#include <set>
#include <unordered_map>

#include "headrace/core/error.h"
#include "headrace/core/foreign_content.h"
#include "headrace/core/printable.h"
#include "headrace/weights/other_parts.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kSupported = "; supported are safetensors files in F32, BF16 and F16";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
using WeightMap = std::unordered_map<std::string, std::string>;  // tensor -> shard

bool is_present(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

// Reads the format from the file's ending or, without a known one, from the first bytes: Ollama's blobs have no ending.
ForeignContent format_of(const fs::path& file) {
  const std::string extension = file.extension().string();
  if (extension == ".gguf") return ForeignContent::kGguf;
  for (const char* pickle : {".bin", ".pt", ".pth", ".ckpt"}) {
    if (extension == pickle) return ForeignContent::kPickle;
  }
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return ForeignContent::kNone;
  std::string begin(512, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(in.gcount()));
  return foreign_content(begin);
}

void refuse_other_format(const fs::path& file) {
  const ForeignContent kind = format_of(file);
  HR_REQUIRE(kind != ForeignContent::kGguf, ErrorCode::kUnsupported, file.string(),
             ": is a GGUF file, which is a model of its own: name the file, not its directory");
  if (kind == ForeignContent::kPickle) refuse_foreign(file.string(), kind, {});
}

// Returns true if the weights are as they were, and only a cache is to be quantised: its scales are tensors like
// others.
bool quantises_cache_alone(const JsonValue& config) {
  const JsonValue* groups = config.find("config_groups");
  const bool no_weights = groups == nullptr || (groups->is_object() && groups->as_object().empty());
  return config.is_object() && config.find("kv_cache_scheme") != nullptr && no_weights &&
         config.string_or("quant_method", "") == "compressed-tensors";
}

void refuse_quantised_tensors(const SafetensorsFile& file) {
  for (const SafetensorsEntry& entry : file.entries())
    for (const std::string_view suffix : {"weight_packed", "qweight", "qzeros", "weight_scale", "weight_scale_inv"}) {
      const bool quantised = entry.name == suffix || entry.name.ends_with(str(".", suffix));
      HR_REQUIRE(!quantised, ErrorCode::kUnsupported, file.name(), ": tensor '", printable(entry.name),
                 "' belongs to quantised weights, which are not supported", kSupported);
    }
}

void check_shard_name(const std::string& index, const std::string& shard) {
  constexpr size_t kLongestName = 255;  // of file systems
  const bool plain = !shard.empty() && shard.size() <= kLongestName && shard != "." &&
                     shard.find("..") == std::string::npos &&
                     shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  HR_REQUIRE(plain, ErrorCode::kModelFile, index, ": the shard name '", printable(shard),
             "' is no plain file name in this directory");
}

WeightMap read_weight_map(const fs::path& index_path) {
  const JsonValue index = read_json_file(index_path);
  WeightMap map;
  for (const auto& [tensor, shard] : index.at("weight_map").as_object()) {
    check_shard_name(index_path.string(), shard.as_string());
    map.emplace(tensor, shard.as_string());
  }
  HR_REQUIRE(!map.empty(), ErrorCode::kModelFile, index_path.string(), ": weight_map is empty");
  return map;
}

// Records the file of each tensor. Throws for a tensor that two files hold: it is unknown which one counts.
void note_tensors(const SafetensorsFile& file, std::map<std::string_view, const SafetensorsFile*>& found) {
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto [at, is_new] = found.emplace(entry.name, &file);
    HR_REQUIRE(is_new || is_of_other_part(entry.name), ErrorCode::kModelFile, file.name(), ": tensor '",
               printable(entry.name), "' is in another shard, too: ", at->second->name());
  }
}

// Shards by name; one that is missing and would hold nothing but other parts is left out.
std::set<std::string> needed_shards(const fs::path& directory, const WeightMap& map) {
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map) {
    if (!is_of_other_part(tensor) || is_present(directory / shard)) shards.insert(shard);
  }
  return shards;
}

// A link to nothing is an absent file, too: a download that did not end.
void require_there(const fs::path& directory, const std::string& shard) {
  std::error_code error;
  HR_REQUIRE(fs::exists(directory / shard, error) || error, ErrorCode::kModelFile, (directory / shard).string(),
             ": cannot be opened: there is no such file, and ", kIndexFile, " names it");
}

CheckpointFiles open_shards(const fs::path& directory, const CheckpointOptions& options) {
  const WeightMap map = read_weight_map(directory / kIndexFile);
  CheckpointFiles opened;
  for (const std::string& shard : needed_shards(directory, map)) {
    require_there(directory, shard);
    opened.files.emplace_back(directory / shard, options.guard);
  }
  std::map<std::string_view, const SafetensorsFile*> found;
  for (const SafetensorsFile& file : opened.files) note_tensors(file, found);
  for (const auto& [tensor, shard] : map) {
    if (!found.contains(tensor)) opened.absent.emplace(tensor, (directory / shard).string());
  }
  return opened;
}

}  // namespace

void refuse_other_formats(const fs::path& model) {
  std::error_code ignored;
  if (fs::is_regular_file(model, ignored)) {
    refuse_other_format(model);
    throw Error(ErrorCode::kModelFile,
                str(model.string(), ": is a file, expected the directory of a model or a GGUF file"));
  }
  if (is_present(model / kSingleFile) || is_present(model / kIndexFile)) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(model, ignored)) refuse_other_format(entry.path());
}

void refuse_quantised_config(const JsonValue& config) {
  const JsonValue* text = config.find("text_config");
  const JsonValue* found = config.find("quantization_config");
  if (!found && text) found = text->find("quantization_config");
  if (!found || quantises_cache_alone(*found)) return;
  throw Error(ErrorCode::kUnsupported,
              str(found->where(), ": weights quantised by '", printable(found->string_or("quant_method", "unknown")),
                  "' are not supported", kSupported));
}

CheckpointFiles open_checkpoint_files(const fs::path& directory, const CheckpointOptions& options) {
  std::error_code error;
  refuse_other_formats(directory);
  HR_REQUIRE(fs::is_directory(directory, error), ErrorCode::kModelFile, directory.string(),
             ": is no directory that can be read");
  CheckpointFiles opened;
  if (is_present(directory / kSingleFile)) {
    opened.files.emplace_back(directory / kSingleFile, options.guard);
  } else {
    HR_REQUIRE(is_present(directory / kIndexFile), ErrorCode::kModelFile, directory.string(), ": has neither ",
               kSingleFile, " nor ", kIndexFile);
    opened = open_shards(directory, options);
  }
  for (const SafetensorsFile& file : opened.files) refuse_quantised_tensors(file);
  return opened;
}

}  // namespace headrace
