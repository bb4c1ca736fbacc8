#include "headrace/chat/jinja_arguments.h"

#include <algorithm>

namespace headrace::jinja {

Parameters::Parameters(std::string_view function, const CallArguments& arguments,
                       std::initializer_list<std::string_view> names, size_t required)
    : function_(function) {
  HR_ASSERT(names.size() <= values_.size());
  const size_t given = arguments.positional.size();
  if (given > names.size()) fail(function, "() takes at most ", names.size(), " arguments (", given, " given)");
  for (size_t i = 0; i < given; ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keywords) {
    const auto* place = std::ranges::find(names, std::string_view(name->bytes));
    if (place == names.end()) fail(function, "() got an unexpected keyword argument ", repr_of(name->bytes));
    const Value*& slot = values_[static_cast<size_t>(place - names.begin())];
    if (slot != nullptr) fail(function, "() got multiple values for argument ", repr_of(name->bytes));
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (values_[i] == nullptr) fail(function, "() missing required argument ", repr_of(*(names.begin() + i)));
}

int64_t Parameters::integer(size_t place, int64_t otherwise) const {
  const Value* value = values_[place];
  if (value == nullptr) return otherwise;
  if (value->is_undefined()) fail(value->undefined().message());
  if (!value->is_integer()) fail("'", type_name(*value), "' object cannot be interpreted as an integer");
  return value->integer();
}

bool Parameters::flag(size_t place, bool otherwise) const {
  return values_[place] == nullptr ? otherwise : is_true(*values_[place]);
}

const Text& Parameters::text(size_t place) const {
  const Value& value = *values_[place];
  if (value.text() == nullptr) fail(function_, "() argument must be str, not ", type_name(value));
  return *value.text();
}

}  // namespace headrace::jinja
