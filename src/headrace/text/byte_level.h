// The byte alphabet of byte-level BPE: how tokenizer.json spells bytes as printable characters (GPT-2,
// bytes_to_unicode): printable Latin-1 stands for itself, the other 68 bytes are U+0100 and up, in order. Stateless.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

char32_t spelling_of_byte(uint8_t byte);

// `bytes` as tokenizer.json spells them; UTF-8.
std::string spelled(std::string_view bytes);

// The bytes that a token's spelling stands for; nullopt if a character of it stands for no byte. `spelling` is valid
// UTF-8.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

// Returns the spelling of a byte in a vocabulary over characters: "<0x0A>".
std::string fallback_spelling(uint8_t byte);

// The byte that such a spelling stands for, in either case of its digits; nullopt for any other text.
std::optional<uint8_t> byte_of_fallback(std::string_view spelling);

}  // namespace headrace
