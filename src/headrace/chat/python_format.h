// Python's formatting of texts: "%s" % x and "{}".format(x).
#pragma once
#include "headrace/chat/jinja_renderer.h"

namespace headrace::jinja {

// `arguments`: a tuple, a dict for %(name)s, or one value.
Value printf_formatted(const Context& context, const Text& format, const Value& arguments);
Value brace_formatted(const Context& context, const Text& format, const CallArguments& arguments);

}  // namespace headrace::jinja
