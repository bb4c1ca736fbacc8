#include "headrace/hub/gguf_choice.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"

namespace headrace {
namespace {

constexpr std::string_view kEnding = ".gguf";
constexpr size_t kPartEnding = std::string_view("-00001-of-00002").size();

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

bool is_no_model(std::string_view file) {
  const std::string name = lower(file);
  return name.find("mmproj") != name.npos || name.find("imatrix") != name.npos || name.starts_with("mtp-");
}

// Without "-00001-of-00003", the number of a part.
std::string_view without_part(std::string_view name) {
  if (name.size() <= kPartEnding) return name;
  std::string digits(name.substr(name.size() - kPartEnding));
  std::ranges::replace_if(
      digits, [](unsigned char c) { return std::isdigit(c) != 0; }, '0');
  return digits == "-00000-of-00000" ? name.substr(0, name.size() - kPartEnding) : name;
}

// A word ends where its letters, digits and underscores do: Q4_K is none of "a-Q4_K_M".
bool is_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool has_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_of_word(text[at - 1])) && (end == text.size() || !is_of_word(text[end]))) return true;
  }
  return false;
}

bool is_called(const GgufChoice& choice, const std::string& word) {
  const std::string_view name = choice.names.front();
  return lower(choice.stem) == word || has_word(lower(name.substr(0, name.size() - kEnding.size())), word);
}

std::string_view file_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

}  // namespace

std::string_view gguf_stem(std::string_view file_name) {
  if (file_name.ends_with(kEnding)) file_name.remove_suffix(kEnding.size());
  return without_part(file_name);
}

std::vector<GgufChoice> gguf_choices(std::vector<std::string> names) {
  std::ranges::sort(names);
  std::map<std::string, GgufChoice> by_path;  // without part and ending
  for (std::string& name : names) {
    if (!name.ends_with(kEnding) || is_no_model(file_name(name))) continue;
    const std::string path(gguf_stem(name));
    GgufChoice& choice = by_path[path];
    choice.stem = file_name(path);
    choice.names.push_back(std::move(name));
  }
  std::vector<GgufChoice> choices;
  choices.reserve(by_path.size());
  for (auto& [path, choice] : by_path) choices.push_back(std::move(choice));
  std::ranges::stable_sort(choices, {}, &GgufChoice::stem);
  return choices;
}

GgufChoice choose_gguf(const std::vector<GgufChoice>& choices, std::string_view tag, std::string_view repository) {
  std::vector<GgufChoice> exact, fitting;
  const std::string word = lower(tag);
  for (const GgufChoice& choice : choices) {
    if (lower(choice.stem) == word) exact.push_back(choice);
    if (is_called(choice, word)) fitting.push_back(choice);
  }
  if (exact.size() == 1) return exact.front();
  HR_REQUIRE(!choices.empty(), ErrorCode::kModelFile, repository, ": has no GGUF file");
  HR_REQUIRE(!fitting.empty(), ErrorCode::kModelFile, repository, ": has no GGUF file named '", printable(tag),
             "'; there are ", gguf_stems(choices));
  HR_REQUIRE(fitting.size() == 1, ErrorCode::kModelFile, repository, ": '", printable(tag), "' may be ",
             gguf_stems(fitting), "; name one of them");
  return fitting.front();
}

bool has_gguf(const std::vector<GgufChoice>& choices, std::string_view tag) {
  return std::ranges::any_of(choices,
                             [word = lower(tag)](const GgufChoice& choice) { return is_called(choice, word); });
}

std::string gguf_tag(const std::vector<GgufChoice>& choices, const GgufChoice& choice) {
  const std::string_view stem = choice.stem;
  const std::string_view last = stem.substr(std::min(stem.find_last_of("-.") + 1, stem.size()));
  try {
    if (choose_gguf(choices, last, "").names == choice.names) return std::string(last);
  } catch (const Error&) {  // several have that word
  }
  return choice.stem;
}

std::string gguf_stems(const std::vector<GgufChoice>& choices) {
  constexpr size_t kMost = 24;
  std::string stems;
  for (size_t i = 0; i < std::min(choices.size(), kMost); ++i)
    stems += str(stems.empty() ? "" : ", ", printable(choices[i].stem));
  return choices.size() > kMost ? str(stems, " and ", choices.size() - kMost, " more") : stems;
}

}  // namespace headrace
