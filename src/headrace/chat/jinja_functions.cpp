// Functions that every template has.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>

#include "headrace/chat/jinja_arguments.h"
#include "headrace/text/utf8.h"

namespace headrace::jinja {
namespace {

constexpr int64_t kMostOfRange = 100'000;  // as in Jinja's sandbox

Value range(Renderer& renderer, const CallArguments& arguments) {
  const Parameters given("range", arguments, {"start", "stop", "step"}, 1);
  const bool one = given[1] == nullptr;
  const auto made =
      std::make_shared<Range>(one ? 0 : given.integer(0, 0), given.integer(one ? 0 : 1, 0), given.integer(2, 1));
  if (made->step == 0) fail("range() arg 3 must not be zero");
  if (made->is_too_large(kMostOfRange))
    fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (", kMostOfRange, ").");
  renderer.context().meter.step();
  return ObjectPtr(made);
}

// dict(mapping or pairs, **others).
std::vector<std::pair<Value, Value>> dict_items(const Context& context, const CallArguments& arguments) {
  std::vector<std::pair<Value, Value>> items;
  if (arguments.positional.size() > 1) fail("dict expected at most 1 argument, got ", arguments.positional.size());
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (const Dict* dict = from.dict()) {
      items = dict->items;
    } else {
      for (const Value& pair : items_in(context, from)) {
        const ListPtr both = items_of(context, pair);
        if (both->items.size() != 2)
          fail("dictionary update sequence element has length ", both->items.size(), "; 2 is required");
        items.emplace_back(both->items[0], both->items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.keywords) items.emplace_back(name, value);
  return items;
}

Value dict(Renderer& renderer, const CallArguments& arguments) {
  return renderer.context().dict(dict_items(renderer.context(), arguments));
}

Value namespace_of(Renderer& renderer, const CallArguments& arguments) {
  Namespace& names = renderer.keep<Namespace>();
  for (auto& [name, value] : dict_items(renderer.context(), arguments)) {
    if (name.text() == nullptr) fail("a namespace has names that are texts, not ", type_name(name));
    renderer.set_attribute(names, name.text_ptr(), std::move(value));
  }
  return kept(names);
}

Value cycler(Renderer& renderer, const CallArguments& arguments) {
  if (arguments.positional.empty()) fail("at least one item has to be provided");
  return kept(renderer.keep<Cycler>(arguments.positional));
}

Value joiner(Renderer& renderer, const CallArguments& arguments) {
  const Parameters given("joiner", arguments, {"sep"});
  return kept(renderer.keep<Joiner>(given[0] == nullptr ? Value(constant_text(", ")) : *given[0]));
}

Value lipsum(Renderer&, const CallArguments&) { fail("the function 'lipsum' is not supported"); }

Value raise_exception(Renderer& renderer, const CallArguments& arguments) {
  const Parameters given("raise_exception", arguments, {"message"}, 1);
  fail(to_text(renderer.context(), *given[0])->bytes);
}

// datetime.now().strftime(format).
Value strftime_now(Renderer& renderer, const CallArguments& arguments) {
  const Parameters given("strftime_now", arguments, {"format"}, 1);
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  localtime_r(&now, &local);
  const std::string& format = given.text(0).bytes;
  if (format.size() > 200) fail("the format of strftime_now() is longer than 200 bytes");
  char out[4096];
  const size_t size = std::strftime(out, sizeof(out), format.c_str(), &local);
  return renderer.context().text(repaired(std::string_view(out, size)));
}

constexpr std::pair<std::string_view, Function::Body> kFunctions[] = {{"cycler", cycler},
                                                                      {"dict", dict},
                                                                      {"joiner", joiner},
                                                                      {"lipsum", lipsum},
                                                                      {"namespace", namespace_of},
                                                                      {"raise_exception", raise_exception},
                                                                      {"range", range},
                                                                      {"strftime_now", strftime_now}};

}  // namespace

Function::Body global_function(std::string_view name) {
  const auto* found = std::ranges::find(kFunctions, name, &std::pair<std::string_view, Function::Body>::first);
  return found == std::end(kFunctions) ? nullptr : found->second;
}

}  // namespace headrace::jinja
