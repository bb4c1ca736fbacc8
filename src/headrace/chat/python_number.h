// Numbers in fields, as Python's format specifications write them.
#pragma once
#include <cstdint>
#include <string>

#include "headrace/chat/jinja_value.h"

namespace headrace::jinja {

// [[fill]align][sign][#][0][width][,][.precision][type]
struct FormatSpec {
  std::string fill = " ";
  char align = '\0';  // '<', '>', '^', '='; '\0': left for texts, right for numbers
  char sign = '-';
  bool alternate = false;
  char grouping = '\0';  // ',' or '_'
  int64_t width = 0;
  int64_t precision = -1;  // -1: none
  char type = '\0';
};

// Error: not a specification.
FormatSpec parse_spec(std::string_view spec);
void append_field(const Context& context, const Value& value, const FormatSpec& spec, TextBuilder& out);
// The number without its field; it begins with its sign.
std::string integer_text(int64_t value, const FormatSpec& spec);
std::string float_text(double value, const FormatSpec& spec);

}  // namespace headrace::jinja
