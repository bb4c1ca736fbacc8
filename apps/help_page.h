// The short help of a command: what it shows beside its options' own descriptions.
#pragma once
#include <string_view>
#include <vector>

namespace headrace::app {

// An option that people use, by its long name. `brief`: what the short help says of it, its default with it; empty:
// what the option says itself.
struct CommonOption {
  std::string_view name, brief;
};

struct HelpExample {
  std::string_view line, what;
};

struct HelpPage {
  std::string_view path;             // "headrace generate"
  std::string_view usage;            // behind it; empty: from the command's own words
  std::vector<CommonOption> common;  // in this order; empty: all options
  std::vector<HelpExample> examples;
  std::string_view more;  // the last line
};

// The page of the command whose words are `path`; null where it has none: its help lists all options.
const HelpPage* help_page(std::string_view path);

}  // namespace headrace::app
