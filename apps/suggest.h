// "Did you mean ...?"
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace headrace::app {

// The candidate that begins with `word`, if that has four letters or more; else the one that it is most likely a slip
// of the pen for: at most a third of its letters (two at least, but one of less than six) differ, where a letter more,
// less or other and two letters the wrong way round count as one. Of equals, the first. Words of two letters are near
// to none, nor is any word to them.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

// One sentence for the first argument that names no command or option of `app` (where another program has it, what to
// do here), or for a command or the value of the last option that is missing; or nothing.
std::optional<std::string> unknown_argument(const CLI::App& app, const std::vector<std::string>& arguments);

// One sentence for the first option that was given more often than it takes values when `app` was parsed; or nothing.
std::optional<std::string> given_again(const CLI::App& app);

// One sentence about the words that were left over when `app` had been parsed, as they were written.
std::string left_over(const CLI::App& app);

// One sentence about two options that exclude each other, or one that is missing beside another, when `app` was parsed;
// or nothing.
std::optional<std::string> ill_matched(const CLI::App& app);

// One sentence about what the command needs and the parsed line lacks; or nothing.
std::optional<std::string> missing_option(const CLI::App& app);

// `why`, a sentence about an option ("--max-tokens: is ..."), with the name that `words` have for it in front ("-n,
// --max-tokens: is ..."), or of the command whose only word it is about.
std::string with_names(const CLI::App& app, const std::vector<std::string>& words, const std::string& why);

}  // namespace headrace::app
