// Reads keyword arguments by name.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "headrace/core/error.h"

namespace headrace::python {

// Name of the type's values in an error.
template <class T>
constexpr std::string_view kind_of() {
  if constexpr (std::is_same_v<T, bool>) {
    return "True or False";
  } else if constexpr (std::is_integral_v<T>) {
    return "an integer";
  } else if constexpr (std::is_floating_point_v<T>) {
    return "a number";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "a str";
  } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
    return "a list of integers";
  } else {
    return "a list of str";
  }
}

// The value as Python prints it.
inline std::string shown(nanobind::handle value) { return nanobind::cast<std::string>(nanobind::repr(value)); }

// Keyword arguments of a function. An argument that is None counts as not given. Errors of all: kInvalidArgument, with
// the argument's name and its value.
class Fields {
 public:
  // `values` is not owned.
  explicit Fields(const nanobind::dict& values) : values_(values) {}

  // Sets `target`, of T or std::optional<T>, if the argument was given.
  template <class T>
  void read(const char* name, T& target) const {
    if (const nanobind::object value = given(name); value.is_valid()) target = cast<T>(name, value);
  }
  template <class T>
  void read(const char* name, std::optional<T>& target) const {
    if (const nanobind::object value = given(name); value.is_valid()) target = cast<T>(name, value);
  }
  // The argument that is one of `names`: its index.
  template <size_t N>
  std::optional<size_t> choice(const char* name, const std::array<std::string_view, N>& names) const {
    const nanobind::object value = given(name);
    if (!value.is_valid()) return std::nullopt;
    std::string text, expected;
    for (size_t i = 0; i < N; ++i) {
      if (nanobind::try_cast(value, text) && text == names[i]) return i;
      expected += str(i == 0 ? "" : i + 1 < N ? ", " : " or ", "'", names[i], "'");
    }
    throw Error(ErrorCode::kInvalidArgument, str(name, " is ", shown(value), ", expected ", expected));
  }

 private:
  nanobind::object given(const char* name) const {
    nanobind::object value;
    if (values_.contains(name)) value = values_[name];
    return value.is_none() ? nanobind::object() : value;
  }
  template <class T>
  static T cast(const char* name, nanobind::handle value) {
    T result{};
    // A bool is an int in Python, and never meant as a number.
    const bool fits = PyBool_Check(value.ptr()) ? std::is_same_v<T, bool> : true;
    HR_REQUIRE(fits && nanobind::try_cast(value, result), ErrorCode::kInvalidArgument, name, " is ", shown(value),
               ", expected ", kind_of<T>());
    return result;
  }

  const nanobind::dict& values_;  // not owned
};

}  // namespace headrace::python
