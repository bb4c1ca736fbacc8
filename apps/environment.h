#pragma once
#include <string_view>

namespace headrace::app {

// Empty where there is no such variable. Nothing in this program sets any, so what it refers to stays.
std::string_view variable(const char* name);

}  // namespace headrace::app
