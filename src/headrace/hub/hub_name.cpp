#include "headrace/hub/hub_name.h"

namespace headrace {
namespace {

constexpr std::string_view kFolderPrefix = "models--";
constexpr std::string_view kWordLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

}  // namespace

bool is_hub_word(std::string_view text) {
  return !text.empty() && !text.starts_with('.') && text.find("..") == text.npos &&
         text.find_first_not_of(kWordLetters) == text.npos;
}

bool is_hub_revision(std::string_view text) {
  for (size_t slash = text.find('/'); slash != text.npos; slash = text.find('/')) {
    if (!is_hub_word(text.substr(0, slash))) return false;
    text.remove_prefix(slash + 1);
  }
  return is_hub_word(text);
}

bool is_commit_hash(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

std::optional<std::string> hub_folder(std::string_view repository) {
  const size_t slash = repository.find('/');
  std::string folder(kFolderPrefix);
  if (slash == repository.npos) {
    return is_hub_word(repository) ? std::optional(folder.append(repository)) : std::nullopt;
  }
  const std::string_view owner = repository.substr(0, slash), name = repository.substr(slash + 1);
  if (!is_hub_word(owner) || !is_hub_word(name)) return std::nullopt;
  return folder.append(owner).append("--").append(name);
}

bool is_hub_repository(std::string_view name) { return name.find('/') != name.npos && hub_folder(name); }

std::optional<std::string> hub_repository(std::string_view folder) {
  if (!folder.starts_with(kFolderPrefix)) return std::nullopt;
  std::string name(folder.substr(kFolderPrefix.size()));
  const size_t dashes = name.find("--");
  if (dashes != name.npos) name.replace(dashes, 2, "/");
  return hub_folder(name) ? std::optional(name) : std::nullopt;
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  const size_t at = text.find('@');
  const std::string_view model = text.substr(0, at);
  const size_t colon = model.find(':');
  HubName name{.repository = std::string(model.substr(0, colon))};
  if (at != text.npos) name.revision = text.substr(at + 1);
  if (colon != model.npos) name.gguf = model.substr(colon + 1);
  if (!hub_folder(name.repository) || !is_hub_revision(name.revision)) return std::nullopt;
  if (colon != model.npos && !is_hub_word(name.gguf)) return std::nullopt;
  return name;
}

std::string text_of(const HubName& name) {
  std::string text = name.repository;
  if (!name.gguf.empty()) text += ":" + name.gguf;
  if (name.revision != "main") text += "@" + name.revision;
  return text;
}

}  // namespace headrace
