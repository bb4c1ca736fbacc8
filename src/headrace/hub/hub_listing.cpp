#include "headrace/hub/hub_listing.h"

#include <algorithm>
#include <array>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/hub/content_hash.h"
#include "headrace/hub/gguf_choice.h"
#include "headrace/hub/hub_name.h"
#include "headrace/weights/config_file.h"

namespace headrace {
namespace {

// Not empty, relative, without ".." and ".", and of bytes that mean nothing to a file system.
bool is_safe_path(std::string_view path) {
  if (path.size() > 1000 || path.find('\\') != path.npos) return false;
  if (std::ranges::any_of(path, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) return false;
  while (true) {
    const std::string_view part = path.substr(0, path.find('/'));
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    if (part.size() == path.size()) return true;
    path.remove_prefix(part.size() + 1);
  }
}

HubFile file_of(const JsonValue& entry, std::string_view where) {
  HubFile file{.name = entry.at("rfilename").as_string(),
               .size = entry.int_or("size", HubFile::kUnknownSize),
               .etag = entry.string_or("blobId", "")};
  HR_REQUIRE(is_safe_path(file.name), ErrorCode::kModelFile, where, ": lists a file '", printable(file.name),
             "', which is no name of a file in a folder; nothing is downloaded");
  if (const JsonValue* lfs = entry.find("lfs")) {
    file.etag = lfs->string_or("sha256", lfs->string_or("oid", ""));
    file.size = lfs->int_or("size", file.size);
  }
  return file;
}

bool is_weights(std::string_view name) { return name.ends_with(".safetensors"); }

// Returns true for what other programs read: sentencepiece's and tiktoken's tokenizers too, which are small.
bool is_side_file(std::string_view name) {
  if (name.starts_with("additional_chat_templates/")) return name.ends_with(".jinja");
  if (name.find('/') != name.npos || name.ends_with(".bin.index.json")) return false;
  static constexpr std::array<std::string_view, 4> kEndings = {".json", ".jinja", ".tiktoken", ".model"};
  static constexpr std::array<std::string_view, 2> kNames = {"merges.txt", "vocab.txt"};
  return std::ranges::any_of(kEndings, [name](std::string_view ending) { return name.ends_with(ending); }) ||
         std::ranges::find(kNames, name) != kNames.end();
}

bool has_file(const HubListing& listing, std::string_view name) {
  return std::ranges::find(listing.files, name, &HubFile::name) != listing.files.end();
}

// Shards where an index is there, else model.safetensors, else every file in safetensors.
std::vector<HubFile> weight_files(const HubListing& listing) {
  const bool sharded = has_file(listing, "model.safetensors.index.json"),
             whole = has_file(listing, "model.safetensors");
  std::vector<HubFile> all, named;
  for (const HubFile& file : listing.files) {
    const std::string_view name = file.name;
    if (!is_weights(name) || name.find('/') != name.npos) continue;
    all.push_back(file);
    const bool shard = name.starts_with("model") && name.find("-of-") != name.npos;
    if (sharded ? shard : whole && name == "model.safetensors") named.push_back(file);
  }
  return named.empty() ? all : named;
}

// "pytorch_model.bin, model.gguf" of the files that look like weights; empty where none does.
std::string other_weights(const HubListing& listing) {
  std::string names;
  int count = 0;
  for (const HubFile& file : listing.files) {
    const std::string_view name = file.name;
    const bool weights = std::ranges::any_of(
        std::array<std::string_view, 7>{".bin", ".gguf", ".pt", ".pth", ".onnx", ".h5", ".safetensors"},
        [name](std::string_view ending) { return name.ends_with(ending); });
    if (weights && ++count <= 3) names += (names.empty() ? "" : ", ") + printable(name);
  }
  return count > 3 ? str(names, " and ", count - 3, " more") : names;
}

std::vector<GgufChoice> choices_of(const HubListing& listing) {
  std::vector<std::string> names;
  for (const HubFile& file : listing.files) names.push_back(file.name);
  return gguf_choices(std::move(names));
}

std::vector<HubFile> gguf_files(const HubListing& listing, const HubName& name) {
  std::vector<HubFile> files;
  for (const std::string& part : choose_gguf(choices_of(listing), name.gguf, name.repository).names)
    files.push_back(*std::ranges::find(listing.files, part, &HubFile::name));
  return files;
}

[[noreturn]] void refuse_other_weights(const HubListing& listing, const std::string& repository) {
  const std::vector<GgufChoice> choices = choices_of(listing);
  const std::string others = other_weights(listing);
  const std::string advice = !choices.empty() ? str(", but the GGUF models ", gguf_stems(choices), "; ", repository,
                                                    ":", gguf_tag(choices, choices.front()), " names one of them")
                             : others.empty() ? ""
                                              : str(", but ", others, "; headrace reads no others");
  throw Error(ErrorCode::kUnsupported, str(repository, ": holds no weights in safetensors at its top level", advice));
}

}  // namespace

bool is_checkable(const HubFile& file) { return file.size >= 0 && ContentHash::is_hash(file.etag); }

HubListing parse_hub_listing(std::string_view json, std::string_view where) {
  const JsonValue answer = JsonValue::parse(json, where);
  HubListing listing{.commit = answer.at("sha").as_string(), .files = {}};
  HR_REQUIRE(is_commit_hash(listing.commit), ErrorCode::kModelFile, where, ": sha is '", printable(listing.commit),
             "', expected a commit's hash of 40 digits");
  for (const JsonValue& entry : answer.at("siblings").as_array()) listing.files.push_back(file_of(entry, where));
  return listing;
}

std::vector<HubFile> model_files(const HubListing& listing, const HubName& name) {
  if (!name.gguf.empty()) return gguf_files(listing, name);
  std::vector<HubFile> files = weight_files(listing);
  if (files.empty()) refuse_other_weights(listing, name.repository);
  std::ranges::copy_if(listing.files, std::back_inserter(files),
                       [](const HubFile& file) { return is_side_file(file.name); });
  std::ranges::sort(files, {}, &HubFile::name);
  return files;
}

}  // namespace headrace
