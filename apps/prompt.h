// Reads the prompt of `headrace generate` and warns of what may surprise about it.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "commands.h"
#include "headrace/text/tokenizer.h"

namespace headrace::app {

// Returns true if a word without an option before it reads as a text and not as the name of a model: it has white
// space, or is one word of letters, with or without a punctuation mark at its end ("Hello!"). Paths and names have
// slashes, digits, dots, dashes, colons or underscores.
bool reads_as_text(std::string_view word);

// Puts flags.words in their places: [MODEL] [PROMPT]. A single word is the prompt when --model is given, or when no
// prompt is given elsewhere and the word names no model and reads as a text, or is empty. The prompt "-" is standard
// input, as of --file. Error kInvalidArgument for words beyond these. Returns a warning about a single word that could
// have been meant as a model's name; or nothing. `command` stands in errors.
std::optional<std::string> place_words(GenerateFlags& flags, std::string_view command = "generate");

// The prompt: --prompt or a word, --file, or what is piped into standard input without its last line feed, which
// `echo` adds. Error kInvalidArgument where there is none. With --escape its escape sequences are replaced.
std::string prompt_of(const GenerateFlags& flags);

// Returns true if the model in `directory` has a chat template.
bool has_chat_template(const std::filesystem::path& directory);

// `text` with \n, \t, \r, \\, \" and \' replaced by what they stand for; other backslashes stay.
std::string unescaped(std::string_view text);

// One sentence about a prompt on the command line that holds "\n" as two characters, when neither --escape nor
// --no-escape says what is meant; or nothing.
std::optional<std::string> escape_warning(const GenerateFlags& flags);

// One sentence where `prompt` spells a special token of the model and is read as plain text, or where the model in
// `directory` has a chat template and the prompt spells none of its special tokens; or nothing.
std::optional<std::string> template_warning(const GenerateFlags& flags, std::string_view prompt,
                                            const Tokenizer& tokenizer, const std::filesystem::path& directory);

}  // namespace headrace::app
