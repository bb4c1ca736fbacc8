#include "headrace/core/foreign_content.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"

namespace headrace {
namespace {

using std::string_view_literals::operator""sv;
constexpr std::string_view kSpaces = " \t\r\n";

bool begins_like(std::string_view text, std::string_view lower) {
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(), [&same](char b, char a) { return same(a, b); });
}

template <size_t N>
bool begins_like_one(std::string_view text, const std::array<std::string_view, N>& beginnings) {
  return std::ranges::any_of(beginnings, [text](std::string_view lower) { return begins_like(text, lower); });
}

// Skips a byte order mark and spaces.
std::string_view text_of(std::string_view content) {
  if (content.starts_with("\xEF\xBB\xBF"sv)) content.remove_prefix(3);
  content.remove_prefix(std::min(content.find_first_not_of(kSpaces), content.size()));
  return content;
}

bool is_server_error(std::string_view text) {
  constexpr std::array kTexts = {"entry not found"sv,
                                 "repository not found"sv,
                                 "invalid username or password"sv,
                                 "access to model "sv,
                                 "invalid credentials"sv,
                                 "unauthorized"sv,
                                 "404: not found"sv,
                                 "not found"sv,
                                 "forbidden"sv,
                                 "internal server error"sv};
  if (begins_like_one(text, kTexts)) return true;
  if (!text.starts_with('{')) return false;
  text = text_of(text.substr(1));
  return text.starts_with("\"error\""sv) && text_of(text.substr(7)).starts_with(':');
}

// Returns early for files that end in a bracket, so that large complete ones are not scanned.
bool is_half_json(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpaces);
  if (!text.starts_with('{') || text[last] == '}') return false;
  int64_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      depth += (c == '{' || c == '[') ? 1 : (c == '}' || c == ']') ? -1 : 0;
    }
  }
  return in_string || depth > 0;
}

// Makes text printable on one line.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 60;
  std::string out(text.substr(0, kMost));
  std::ranges::replace_if(
      out, [](unsigned char c) { return c < ' ' || c > '~'; }, ' ');
  out.erase(std::min(out.find_last_not_of(' ') + 1, out.size()));
  return text.size() > kMost ? out + "..." : out;
}

}  // namespace

ForeignContent foreign_content(std::string_view content) {
  using Kind = ForeignContent;
  constexpr std::array kPages = {"<!doctype"sv, "<html"sv, "<?xml"sv, "<head"sv};
  if (content.empty()) return Kind::kEmpty;
  if (content.starts_with("GGUF"sv)) return Kind::kGguf;
  if (content.starts_with("version http"sv)) return Kind::kLfsPointer;
  const bool is_pickle = content.size() > 2 && content[0] == '\x80' && content[1] >= 2 && content[1] <= 5;
  if (is_pickle || content.starts_with("PK\x03\x04"sv)) return Kind::kPickle;
  for (const std::string_view magic : {"\x1F\x8B"sv, "\x28\xB5\x2F\xFD"sv,
                                       "\xFD"
                                       "7zXZ"sv,
                                       "BZh"sv}) {
    if (content.starts_with(magic)) return Kind::kCompressed;
  }
  const std::string_view text = text_of(content);
  if (begins_like_one(text, kPages)) return Kind::kWebPage;
  if (is_server_error(text)) return Kind::kServerError;
  return is_half_json(text) ? Kind::kHalfJson : Kind::kNone;
}

void refuse_foreign(std::string_view file, ForeignContent kind, std::string_view content) {
  const auto refuse = [file](ErrorCode code, const auto&... parts) { throw Error(code, str(file, ": ", parts...)); };
  constexpr std::string_view kSupported = "safetensors files in F32, BF16 and F16";
  const std::string_view text = text_of(content);
  switch (kind) {
    case ForeignContent::kNone: return;
    case ForeignContent::kEmpty: return refuse(ErrorCode::kModelFile, "is empty: the download did not begin");
    case ForeignContent::kWebPage:
      return refuse(ErrorCode::kModelFile, "begins with '", shown(text.substr(0, text.find_first_of(" >\n"))),
                    "': a web page was saved in place of the file");
    case ForeignContent::kServerError:
      return refuse(ErrorCode::kModelFile, "begins with '", shown(text),
                    "': a server's error was saved in place of the file");
    case ForeignContent::kLfsPointer:
      return refuse(ErrorCode::kModelFile,
                    "is a pointer of Git LFS and not the file itself, which `git lfs pull` fetches");
    case ForeignContent::kCompressed:
      return refuse(ErrorCode::kModelFile, "is compressed (gzip, zstd, xz or bzip2); expected the file itself");
    case ForeignContent::kPickle:
      return refuse(ErrorCode::kUnsupported, "pickle weights are not supported; convert them to ", kSupported);
    case ForeignContent::kGguf:
      return refuse(ErrorCode::kUnsupported,
                    "holds a GGUF model, expected another kind of file; a GGUF file is named by itself, as the model");
    case ForeignContent::kHalfJson:
      return refuse(ErrorCode::kModelFile, "ends within its JSON text, after ", human_bytes(content.size()),
                    ": the download is not complete, or a bracket is missing");
  }
}

}  // namespace headrace
