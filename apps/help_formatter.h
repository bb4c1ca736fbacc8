// --help in 100 columns.
#pragma once
#include <CLI/CLI.hpp>

#include <string>

namespace headrace::app {

// CLI11's own, with descriptions broken between words. Names and choices of an option stay on one line.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override;
};

}  // namespace headrace::app
