// Values of a rendering, with the meaning that Python gives them.
#pragma once
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "headrace/chat/render_meter.h"
#include "headrace/chat/template_text.h"
#include "headrace/core/error.h"

namespace headrace::jinja {

// Ends a rendering: Error kInvalidArgument.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(ErrorCode::kInvalidArgument, str(parts...));
}

struct Undefined;
struct List;
struct Dict;
struct Object;
using UndefinedPtr = std::shared_ptr<const Undefined>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using ObjectPtr = std::shared_ptr<Object>;

struct None {};

// Cheap to copy: what is large is shared. All but objects is immutable.
class Value {
 public:
  Value() = default;  // None
  Value(None) {}
  Value(bool value) : value_(value) {}
  Value(int64_t value) : value_(value) {}
  Value(double value) : value_(value) {}
  Value(UndefinedPtr value) : value_(std::move(value)) {}
  Value(TextPtr value) : value_(std::move(value)) {}
  Value(ListPtr value) : value_(std::move(value)) {}
  Value(DictPtr value) : value_(std::move(value)) {}
  Value(ObjectPtr value) : value_(std::move(value)) {}

  bool is_none() const { return std::holds_alternative<None>(value_); }
  bool is_undefined() const { return std::holds_alternative<UndefinedPtr>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_float() const { return std::holds_alternative<double>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_) || is_bool(); }  // as in Python
  bool is_number() const { return is_integer() || is_float(); }

  // The value of that kind, null if it has another one.
  const Text* text() const { return get<TextPtr>(); }
  const List* list() const { return get<ListPtr>(); }
  const Dict* dict() const { return get<DictPtr>(); }
  Object* object() const { return get<ObjectPtr>(); }
  const TextPtr& text_ptr() const { return std::get<TextPtr>(value_); }
  const ListPtr& list_ptr() const { return std::get<ListPtr>(value_); }
  const DictPtr& dict_ptr() const { return std::get<DictPtr>(value_); }
  const Undefined& undefined() const { return *std::get<UndefinedPtr>(value_); }

  int64_t integer() const {  // expects is_integer()
    return is_bool() ? static_cast<int64_t>(std::get<bool>(value_)) : std::get<int64_t>(value_);
  }
  double number() const { return is_float() ? std::get<double>(value_) : static_cast<double>(integer()); }

 private:
  template <class Ptr>
  auto get() const -> typename Ptr::element_type* {
    const Ptr* ptr = std::get_if<Ptr>(&value_);
    return ptr == nullptr ? nullptr : ptr->get();
  }

  std::variant<None, bool, int64_t, double, UndefinedPtr, TextPtr, ListPtr, DictPtr, ObjectPtr> value_;
};

// An absent value: it prints as nothing and has no items; most else that is done with it fails with its message.
struct Undefined {
  enum class Of : uint8_t { kName, kAttribute, kElement, kHint };
  Of of = Of::kName;
  std::string_view type = {};  // of the value that lacks it
  std::string name = {};       // or the hint

  std::string message() const;
};

struct List {  // or a tuple
  enum class Kind : uint8_t { kList, kTuple };
  Kind kind = Kind::kList;
  bool is_group = false;  // a tuple of groupby: also (grouper, list)
  int32_t depth = 1;      // of values within values
  std::vector<Value> items;
  HeldMemory held;
};

struct Dict {
  int32_t depth = 1;
  std::vector<std::pair<Value, Value>> items;                  // in order of insertion; keys are unique
  std::unordered_map<std::string_view, uint32_t> text_places;  // of keys that are texts, in large ones
  HeldMemory held;
};

// A value that is neither text nor number nor container.
struct Object {
  enum class Kind : uint8_t {
    kNamespace,
    kMacro,
    kLoop,
    kIterator,
    kView,
    kRange,
    kFunction,
    kMethod,
    kCycler,
    kJoiner
  };
  explicit Object(Kind type) : kind(type) {}
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  const Kind kind;
};

// A generator: its items can be read once.
struct Iterator : Object {
  explicit Iterator(ListPtr items) : Object(Kind::kIterator), list(std::move(items)) {}
  ListPtr list;
  size_t next = 0;
};

// dict.keys(), values() and items().
struct View : Object {
  enum class Of : uint8_t { kKeys, kValues, kItems };
  View(DictPtr source, Of part) : Object(Kind::kView), dict(std::move(source)), of(part) {}
  DictPtr dict;
  Of of;
};

struct Range : Object {
  Range(int64_t from, int64_t to, int64_t by) : Object(Kind::kRange), start(from), stop(to), step(by) {}
  int64_t size() const;  // of one that is not too large
  bool is_too_large(int64_t most) const;
  int64_t item(int64_t place) const {  // within the bounds, although the product may be beyond 64 bits
    return static_cast<int64_t>(static_cast<uint64_t>(start) +
                                static_cast<uint64_t>(place) * static_cast<uint64_t>(step));
  }
  int64_t start, stop, step;
};

// A method of a value, not called yet.
struct Method : Object {
  Method(Value object, std::string method) : Object(Kind::kMethod), self(std::move(object)), name(std::move(method)) {}
  Value self;
  std::string name;
};

// The part of a rendering that values need. Values nest `max_depth` deep at most, so that code may recurse into them.
struct Context {
  RenderMeter& meter;
  int32_t max_depth;

  TextPtr text(std::string_view bytes, Origin origin = Origin::kTemplate) const;
  TextPtr part(const Text& text, size_t begin, size_t end) const;
  Value list(std::vector<Value> items, List::Kind kind = List::Kind::kList) const;
  Value tuple(std::vector<Value> items) const { return list(std::move(items), List::Kind::kTuple); }
  Value iterator(std::vector<Value> items) const;
  // Later values of equal keys win; the first one's place stays.
  Value dict(std::vector<std::pair<Value, Value>> items) const;
  Value undefined(Undefined::Of of, std::string_view type, std::string_view name) const;
};

int32_t depth_of(const Value& value);

// Python's name of the value's type: "str", "NoneType".
std::string_view type_name(const Value& value);
// As in messages of undefined attributes: "dict object", "None".
std::string described_type(std::string_view type);

bool is_true(const Value& value);
// Returns null if the dict lacks `key`. Error: a key that cannot be hashed.
const Value* find(const Context& context, const Dict& dict, const Value& key);
const Value* find(const Dict& dict, std::string_view key);

bool equal(const Context& context, const Value& a, const Value& b);
// `sign` is the operator in the error of values that have no order.
std::partial_ordering order_of(const Context& context, const Value& a, const Value& b, std::string_view sign = "<");
bool contains(const Context& context, const Value& container, const Value& item);

// len(); nullopt for a value without one.
std::optional<int64_t> length_of(const Value& value);

// The items of anything that can be iterated. An iterator is read to its end.
ListPtr items_of(const Context& context, const Value& value);

// Owns the items that a range-based for reads.
class Items {
 public:
  explicit Items(ListPtr list) : list_(std::move(list)) {}
  auto begin() const { return list_->items.begin(); }
  auto end() const { return list_->items.end(); }

 private:
  ListPtr list_;
};
inline Items items_in(const Context& context, const Value& value) { return Items(items_of(context, value)); }
bool is_iterable(const Value& value);

// str() and repr(); text keeps its origins.
TextPtr to_text(const Context& context, const Value& value);
void append_str(const Context& context, const Value& value, TextBuilder& out);
void append_repr(const Context& context, const Value& value, TextBuilder& out);
std::string float_repr(double value);
std::string repr_of(std::string_view text);  // repr() of a str

}  // namespace headrace::jinja
