#include "headrace/gguf/gguf_header.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"
#include "headrace/core/printable.h"

namespace headrace {
namespace {

constexpr uint64_t kMostTensors = 1'000'000, kMostKeys = 100'000;
constexpr uint64_t kMostKeyBytes = 65'535, kMostNameBytes = 63, kMostTextBytes = uint64_t{64} << 20;
constexpr uint64_t kMostElements = uint64_t{16} << 20;  // of an array
constexpr uint64_t kMostDim = uint64_t{1} << 40;
constexpr uint32_t kMostDims = 4;
constexpr int64_t kAlignment = 32, kMostAlignment = 65'536;

enum class ValueType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kText, kArray, kU64, kI64, kF64 };
constexpr std::array<uint64_t, 13> kLeastBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // of a value

bool is_printable_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x21 && c <= 0x7e; });
}
bool has_control(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

// Reads the bytes of a file from the front.
class Cursor {
 public:
  Cursor(std::string_view file, std::span<const unsigned char> bytes) : file_(file), bytes_(bytes) {}

  uint64_t at() const { return at_; }
  uint64_t rest() const { return bytes_.size() - at_; }
  void begin(std::string what) { what_ = std::move(what); }  // what is read now, for errors

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw Error(ErrorCode::kModelFile, str(file_, ": ", what_, ": ", parts..., " (byte ", at_, " of the file)"));
  }

  template <class Number>
  Number number() {
    if (rest() < sizeof(Number)) refuse("the file ends within it: the download is not complete");
    Number value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::string_view text(uint64_t most, std::string_view kind) {
    const auto length = number<uint64_t>();
    if (length > rest()) refuse(kind, " of ", length, " bytes, the file has ", rest(), " more");
    if (length > most) refuse(kind, " of ", length, " bytes, at most ", most, " are read");
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + at_), length);
    at_ += length;
    return text;
  }

 private:
  std::string_view file_;
  std::span<const unsigned char> bytes_;
  uint64_t at_ = 0;
  std::string what_ = "the header";
};

ValueType value_type(Cursor& cursor) {
  const auto type = cursor.number<uint32_t>();
  if (type >= kLeastBytes.size()) cursor.refuse("a value of type ", type, ", expected 0 to ", kLeastBytes.size() - 1);
  return static_cast<ValueType>(type);
}

// Integers, except those of 64 bits without a sign.
int64_t integer_of(Cursor& cursor, ValueType type) {
  switch (type) {
    case ValueType::kU8: return cursor.number<uint8_t>();
    case ValueType::kI8: return cursor.number<int8_t>();
    case ValueType::kU16: return cursor.number<uint16_t>();
    case ValueType::kI16: return cursor.number<int16_t>();
    case ValueType::kU32: return cursor.number<uint32_t>();
    case ValueType::kI32: return cursor.number<int32_t>();
    default: return cursor.number<int64_t>();
  }
}

bool boolean_of(Cursor& cursor) {
  const auto byte = cursor.number<uint8_t>();
  if (byte > 1) cursor.refuse("a bool of ", int{byte}, ", expected 0 or 1");
  return byte == 1;
}

template <class Element, class Read>
GgufArray array_of(uint64_t count, const Read& read) {
  std::vector<Element> elements;
  elements.reserve(count);
  for (uint64_t i = 0; i < count; ++i) elements.push_back(read());
  return elements;
}

GgufArray array_value(Cursor& cursor) {
  const ValueType type = value_type(cursor);
  const auto count = cursor.number<uint64_t>();
  if (type == ValueType::kArray) cursor.refuse("an array of arrays, which no model has");
  if (count > kMostElements) cursor.refuse("an array of ", count, " elements, at most ", kMostElements, " are read");
  const uint64_t least = count * kLeastBytes[static_cast<size_t>(type)];
  if (least > cursor.rest())
    cursor.refuse("an array of ", count, " elements takes ", least, " bytes, the file has ", cursor.rest(), " more");
  switch (type) {
    case ValueType::kF32: return array_of<double>(count, [&] { return double{cursor.number<float>()}; });
    case ValueType::kF64: return array_of<double>(count, [&] { return cursor.number<double>(); });
    case ValueType::kText:
      return array_of<std::string_view>(count, [&] { return cursor.text(kMostTextBytes, "a text"); });
    case ValueType::kBool: return array_of<int64_t>(count, [&] { return int64_t{boolean_of(cursor)}; });
    case ValueType::kU64:
      return array_of<int64_t>(count, [&] {
        const auto number = cursor.number<uint64_t>();
        if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
          cursor.refuse("an element of ", number, ", expected less than 2^63");
        return static_cast<int64_t>(number);
      });
    default: return array_of<int64_t>(count, [&] { return integer_of(cursor, type); });
  }
}

GgufValue value_of(Cursor& cursor) {
  const ValueType type = value_type(cursor);
  switch (type) {
    case ValueType::kF32: return double{cursor.number<float>()};
    case ValueType::kF64: return cursor.number<double>();
    case ValueType::kBool: return boolean_of(cursor);
    case ValueType::kText: return cursor.text(kMostTextBytes, "a text");
    case ValueType::kArray: return array_value(cursor);
    case ValueType::kU64: {
      const auto number = cursor.number<uint64_t>();
      if (number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return static_cast<int64_t>(number);
      return number;
    }
    default: return integer_of(cursor, type);
  }
}

uint32_t version_of(Cursor& cursor) {
  const auto magic = cursor.number<std::array<char, 4>>();
  if (std::string_view(magic.data(), magic.size()) != "GGUF")
    cursor.refuse("the file does not begin with GGUF: it is no GGUF file, or a page or pointer in its place");
  const auto version = cursor.number<uint32_t>();
  if (version != 0 && (version & 0xFFFF) == 0) cursor.refuse("is of a machine with another byte order");
  if (version != 2 && version != 3) cursor.refuse("version ", version, ", expected 2 or 3");
  return version;
}

uint64_t count_of(Cursor& cursor, std::string_view what, uint64_t most, uint64_t least_bytes) {
  const auto count = cursor.number<uint64_t>();
  if (count > most) cursor.refuse(count, " ", what, ", at most ", most, " are read");
  if (count * least_bytes > cursor.rest())
    cursor.refuse(count, " ", what, " do not fit into the ", cursor.rest(), " bytes that follow");
  return count;
}

std::string_view key_of(Cursor& cursor, uint64_t number) {
  cursor.begin(str("key ", number));
  const std::string_view key = cursor.text(kMostKeyBytes, "a key");
  if (key.empty() || !is_printable_ascii(key))
    cursor.refuse("'", printable(key), "' is no key, expected ASCII without blanks");
  cursor.begin(str("key '", printable(key), "'"));
  return key;
}

std::string_view tensor_name(Cursor& cursor, uint64_t number) {
  cursor.begin(str("tensor ", number));
  const std::string_view name = cursor.text(kMostNameBytes, "a name");
  if (name.empty() || has_control(name) || !simdjson::validate_utf8(name.data(), name.size()))
    cursor.refuse("'", printable(name), "' is no name, expected UTF-8 without control characters");
  cursor.begin(str("tensor '", printable(name), "'"));
  return name;
}

std::vector<uint64_t> dims_of(Cursor& cursor) {
  const auto rank = cursor.number<uint32_t>();
  if (rank == 0 || rank > kMostDims) cursor.refuse(rank, " dimensions, expected 1 to ", kMostDims);
  std::vector<uint64_t> dims(rank);
  for (uint64_t& dim : dims) {
    dim = cursor.number<uint64_t>();
    if (dim == 0 || dim > kMostDim) cursor.refuse("a dimension of ", dim, ", expected 1 to 2^40");
  }
  return dims;
}

uint64_t bytes_of(const Cursor& cursor, const GgufTensor& tensor) {
  uint64_t bytes = 1;
  for (const uint64_t dim : tensor.dims)
    if (__builtin_mul_overflow(bytes, dim, &bytes)) cursor.refuse("the number of its elements overflows 64 bits");
  if (tensor.dims.front() % tensor.type->block_elements != 0)
    cursor.refuse("rows of ", tensor.dims.front(), " elements, expected whole blocks of ", tensor.type->block_elements,
                  " (", tensor.type->name, ")");
  bytes /= tensor.type->block_elements;
  if (__builtin_mul_overflow(bytes, tensor.type->block_bytes, &bytes)) cursor.refuse("its bytes overflow 64 bits");
  return bytes;
}

uint64_t rounded_up(uint64_t bytes, uint64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

// `end`: where the data of the tensor before end, from where all data begin; moved on.
GgufTensor declared_tensor(Cursor& cursor, std::string_view name, uint64_t alignment, uint64_t& end) {
  GgufTensor tensor{.name = name, .dims = dims_of(cursor)};
  const auto id = cursor.number<uint32_t>();
  std::string_view why_not;
  tensor.type = find_gguf_type(id, why_not);
  if (tensor.type == nullptr) cursor.refuse("its type ", id, " ", why_not);
  tensor.bytes = bytes_of(cursor, tensor);
  tensor.begin = cursor.number<uint64_t>();
  if (tensor.begin != end)
    cursor.refuse("its data begin at ", tensor.begin, ", expected ", end, ", behind those of the tensor before it");
  if (__builtin_add_overflow(end, tensor.bytes, &end) || end > std::numeric_limits<uint64_t>::max() - alignment)
    cursor.refuse("its data end beyond 2^64");
  end = rounded_up(end, alignment);
  return tensor;
}

uint64_t alignment_of(const GgufHeader& header) {
  const int64_t alignment = header.integer("general.alignment").value_or(kAlignment);
  HR_REQUIRE(alignment >= 1 && alignment <= kMostAlignment && std::has_single_bit(static_cast<uint64_t>(alignment)),
             ErrorCode::kModelFile, header.file(), ": key 'general.alignment': is ", alignment,
             ", expected a power of two up to ", kMostAlignment);
  return static_cast<uint64_t>(alignment);
}

// Offsets count from the first aligned byte behind the header; now they count from the file's begin.
void place_data(const Cursor& cursor, uint64_t alignment, uint64_t file_bytes, std::string_view file,
                std::vector<GgufTensor>& tensors) {
  const uint64_t begin = rounded_up(cursor.at(), alignment);
  for (GgufTensor& tensor : tensors) {
    uint64_t end = 0;
    const bool is_beyond = __builtin_add_overflow(tensor.begin, begin, &tensor.begin) ||
                           __builtin_add_overflow(tensor.begin, tensor.bytes, &end) || end > file_bytes;
    HR_REQUIRE(!is_beyond, ErrorCode::kModelFile, file, ": tensor '", printable(tensor.name), "': its ",
               human_bytes(tensor.bytes), " end behind the file's ", human_bytes(file_bytes),
               ": the download is not complete, or this is the first of several pieces to be joined");
  }
}

}  // namespace

GgufHeader::GgufHeader(std::string file, std::span<const unsigned char> bytes) : file_(std::move(file)) {
  static_assert(std::endian::native == std::endian::little);
  Cursor cursor(file_, bytes);
  version_ = version_of(cursor);
  const uint64_t num_tensors = count_of(cursor, "tensors", kMostTensors, 24);
  const uint64_t num_keys = count_of(cursor, "keys", kMostKeys, 13);
  for (uint64_t i = 0; i < num_keys; ++i) {
    const std::string_view key = key_of(cursor, i);
    if (!values_.emplace(key, value_of(cursor)).second) cursor.refuse("appears twice");
  }
  const uint64_t alignment = alignment_of(*this);
  uint64_t end = 0;
  tensors_.reserve(num_tensors);
  for (uint64_t i = 0; i < num_tensors; ++i) {
    const std::string_view name = tensor_name(cursor, i);
    if (!tensor_by_name_.emplace(name, i).second) cursor.refuse("appears twice");
    tensors_.push_back(declared_tensor(cursor, name, alignment, end));
  }
  place_data(cursor, alignment, bytes.size(), file_, tensors_);
}

const GgufTensor* GgufHeader::find_tensor(std::string_view name) const {
  const auto found = tensor_by_name_.find(name);
  return found == tensor_by_name_.end() ? nullptr : &tensors_[found->second];
}

const GgufValue* GgufHeader::value(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::string_view> GgufHeader::keys() const {
  std::vector<std::string_view> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) keys.push_back(key);
  std::ranges::sort(keys);
  return keys;
}

template <class Kind>
const Kind* GgufHeader::find(std::string_view key, std::string_view expected) const {
  const GgufValue* const found = value(key);
  if (found == nullptr) return nullptr;
  const Kind* const kind = std::get_if<Kind>(found);
  HR_REQUIRE(kind != nullptr, ErrorCode::kModelFile, file_, ": key '", printable(key), "': has another type, expected ",
             expected);
  return kind;
}

template <class Element>
const std::vector<Element>* GgufHeader::find_array(std::string_view key, std::string_view expected) const {
  const GgufArray* const array = find<GgufArray>(key, expected);
  if (array == nullptr) return nullptr;
  const auto* const elements = std::get_if<std::vector<Element>>(array);
  HR_REQUIRE(elements != nullptr, ErrorCode::kModelFile, file_, ": key '", printable(key),
             "': has another type, expected ", expected);
  return elements;
}

std::optional<int64_t> GgufHeader::integer(std::string_view key) const {
  const int64_t* const value = find<int64_t>(key, "an integer below 2^63");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<double> GgufHeader::number(std::string_view key) const {
  const GgufValue* const found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const int64_t* const integer = std::get_if<int64_t>(found)) return static_cast<double>(*integer);
  const double number = *find<double>(key, "a number");
  HR_REQUIRE(std::isfinite(number), ErrorCode::kModelFile, file_, ": key '", printable(key), "': is ", number,
             ", expected a finite number");
  return number;
}

std::optional<bool> GgufHeader::boolean(std::string_view key) const {
  const bool* const value = find<bool>(key, "a bool");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::string_view> GgufHeader::text(std::string_view key) const {
  const std::string_view* const value = find<std::string_view>(key, "a text");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

const std::vector<int64_t>* GgufHeader::integers(std::string_view key) const {
  return find_array<int64_t>(key, "an array of integers");
}
const std::vector<double>* GgufHeader::numbers(std::string_view key) const {
  return find_array<double>(key, "an array of floats");
}
const std::vector<std::string_view>* GgufHeader::texts(std::string_view key) const {
  return find_array<std::string_view>(key, "an array of texts");
}

}  // namespace headrace
