// Reads the arguments of functions, methods and filters.
#pragma once
#include <array>
#include <initializer_list>
#include <string_view>

#include "headrace/chat/jinja_renderer.h"

namespace headrace::jinja {

// The arguments of a call by their parameters' places, as Python binds them.
class Parameters {
 public:
  // The first `required` of `names` must be given. Errors: too few, too many, unknown ones, one given twice.
  Parameters(std::string_view function, const CallArguments& arguments, std::initializer_list<std::string_view> names,
             size_t required = 0);

  // Null if the argument was not given.
  const Value* operator[](size_t place) const { return values_[place]; }
  bool is_given(size_t place) const { return values_[place] != nullptr && !values_[place]->is_none(); }
  // The argument as that type, or `otherwise` if it was not given. Error: one of another type.
  int64_t integer(size_t place, int64_t otherwise) const;
  bool flag(size_t place, bool otherwise) const;
  const Text& text(size_t place) const;  // of one that was given

 private:
  std::string_view function_;
  std::array<const Value*, 8> values_{};
};

}  // namespace headrace::jinja
