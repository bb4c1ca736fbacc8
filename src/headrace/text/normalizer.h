// Unicode normalization form C. Stateless.
#pragma once
#include <string>
#include <string_view>

namespace headrace {

// `text` in NFC. `text` is valid UTF-8. Linear in its length, but for runs of n combining marks: n log n.
std::string nfc(std::string_view text);

}  // namespace headrace
