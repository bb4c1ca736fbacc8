// Unicode normalization form C. Stateless.
#pragma once
#include <string>
#include <string_view>

namespace headrace {

// `text` in NFC as the `tokenizers` package has it, whose tables are those of Unicode 9: a mark that is newer stays
// where it is and separates what is around it. Unicode would also sort it among its neighbours. `text` is valid UTF-8.
// Linear in its length, but for runs of n combining marks: n log n.
std::string nfc(std::string_view text);

}  // namespace headrace
