#include "help_formatter.h"

#include <sstream>

namespace headrace::app {

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  const size_t width = 100 - get_column_width();
  std::istringstream words(option->get_description());
  std::string out;
  size_t column = 0;  // of the line that is being filled
  for (std::string word; words >> word; column += word.size()) {
    if (column > 0) {
      const bool fits = column + 1 + word.size() <= width;
      out += fits ? ' ' : '\n';
      column = fits ? column + 1 : 0;
    }
    out += word;
  }
  return out;
}

}  // namespace headrace::app
