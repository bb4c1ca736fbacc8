// Unicode normalization form C. Stateless.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headrace {

// `text` in NFC as the `tokenizers` package has it, whose tables are those of Unicode 9: a mark that is newer stays
// where it is and separates what is around it. Unicode would also sort it among its neighbours. `text` is valid UTF-8.
// Linear in its length, but for runs of n combining marks: n log n.
std::string nfc(std::string_view text);

// One step of a file's normalizer.
struct NormalizerStep {
  enum class Kind : uint8_t { kNfc, kReplace } kind = Kind::kNfc;
  std::string from, to;  // kReplace: every `from`, left to right without overlap; not empty
};

// `text` (valid UTF-8) after every step, in order. Error kModelFile when it grows, or takes work, beyond what a model's
// normalizer may: steps come from a file, and a few of them can make gigabytes of a byte.
std::string normalized(std::span<const NormalizerStep> steps, std::string_view text);

}  // namespace headrace
