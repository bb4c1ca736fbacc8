// The layout of --help and --help-all.
#pragma once
#include <cstddef>
#include <string>

namespace CLI {
class App;
}

namespace headrace::app {

enum class HelpLength : unsigned char { kShort, kFull };

// The help of `command`, whose words are `path` ("headrace generate"), in lines of at most `columns`. Short: what
// people use, with examples (help_page); full: every option with all its names, by group.
std::string help_of(const CLI::App& command, const std::string& path, HelpLength length, size_t columns);

// Two columns, `left` beside `right`, which is broken between words; below it where `left` is too wide. Ends the line.
std::string two_columns(const std::string& left, const std::string& right, size_t columns);

}  // namespace headrace::app
