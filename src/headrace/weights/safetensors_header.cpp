#include "headrace/weights/safetensors_header.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <unordered_set>

#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"
#include "headrace/core/printable.h"

namespace headrace {
namespace {

namespace dom = simdjson::dom;
constexpr size_t kMaxHeaderDepth = 4;  // top level, entry, array, and one more inside a field that is not read

template <class... Parts>
[[noreturn]] void refuse(std::string_view file, const Parts&... parts) {
  throw Error(ErrorCode::kModelFile, str(file, ": ", parts...));
}

// Says which tensor of which file is wrong.
struct Place {
  std::string_view file, tensor;

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    headrace::refuse(file, "tensor '", printable(tensor), "': ", parts...);
  }
};

dom::element parse_json(std::string_view file, std::string_view json, dom::parser& parser,
                        const simdjson::padded_string& padded) {
  if (!simdjson::validate_utf8(json.data(), json.size())) refuse(file, "the header is not valid UTF-8");
  if (json.front() != '{') refuse(file, "the header does not begin with '{'");
  if (parser.allocate(json.size() + 1, kMaxHeaderDepth + 1) != simdjson::SUCCESS)
    throw Error(ErrorCode::kOutOfMemory, str(file, ": no memory to parse a header of ", json.size(), " bytes"));
  dom::element root;
  const simdjson::error_code error = parser.parse(padded).get(root);
  if (error == simdjson::DEPTH_ERROR) refuse(file, "the header nests deeper than ", kMaxHeaderDepth, " levels");
  if (error == simdjson::NUMBER_ERROR) refuse(file, "the header has a number that is malformed or beyond 2^64 - 1");
  if (error != simdjson::SUCCESS) refuse(file, "the header is not valid JSON: ", simdjson::error_message(error));
  return root;
}

void check_metadata(std::string_view file, dom::element value) {
  if (value.is_null()) return;
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS) refuse(file, "__metadata__ is no object of strings");
  std::unordered_set<std::string_view> seen;
  for (const auto [key, text] : object) {
    if (!text.is_string()) refuse(file, "__metadata__ '", printable(key), "' is no string");
    if (!seen.insert(key).second) refuse(file, "__metadata__ has the key '", printable(key), "' twice");
  }
}

// An array of unsigned integers; fractions, exponents, signs, strings and booleans have another JSON type.
std::vector<uint64_t> unsigned_integers(const Place& place, std::string_view field, dom::element value) {
  dom::array array;
  if (value.get(array) != simdjson::SUCCESS) place.refuse(field, " is no array");
  std::vector<uint64_t> out;
  for (const dom::element item : array) {
    uint64_t number = 0;
    if ((!item.is_uint64() && !item.is_int64()) || item.get(number) != simdjson::SUCCESS)
      place.refuse(field, "[", out.size(), "] is no integer from 0 to 2^64 - 1");
    if (out.size() == kMaxSafetensorsRank) place.refuse(field, " has more than ", kMaxSafetensorsRank, " elements");
    out.push_back(number);
  }
  return out;
}

const SafetensorsDType* read_dtype(const Place& place, dom::element value) {
  std::string_view name;
  if (value.get(name) != simdjson::SUCCESS) place.refuse("dtype is no string");
  const SafetensorsDType* found = find_safetensors_dtype(name);
  if (!found) place.refuse("dtype '", printable(name), "' is unknown");
  return found;
}

SafetensorsEntry read_entry(const Place& place, dom::element value) {
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS) place.refuse("its entry is no object");
  SafetensorsEntry entry{.name = std::string(place.tensor)};
  std::unordered_set<std::string_view> seen;
  for (const auto [key, field] : object) {
    if (!seen.insert(key).second) place.refuse("the field '", printable(key), "' appears twice");
    if (key == "dtype") entry.dtype = read_dtype(place, field);
    if (key == "shape") entry.shape = unsigned_integers(place, key, field);
    if (key != "data_offsets") continue;
    const std::vector<uint64_t> offsets = unsigned_integers(place, key, field);
    if (offsets.size() != 2) place.refuse("data_offsets has ", offsets.size(), " elements, expected 2");
    entry.begin = offsets[0], entry.end = offsets[1];
  }
  for (const std::string_view field : {"dtype", "shape", "data_offsets"})
    if (!seen.contains(field)) place.refuse("the field '", field, "' is missing");
  return entry;
}

// Bytes of the declared shape, multiplied in order: an overflow before a zero dimension counts.
uint64_t declared_bytes(const Place& place, const SafetensorsEntry& entry) {
  uint64_t bits = 1;
  for (const uint64_t dim : entry.shape)
    if (__builtin_mul_overflow(bits, dim, &bits)) place.refuse("the number of elements overflows 64 bits");
  if (__builtin_mul_overflow(bits, entry.dtype->bits, &bits)) place.refuse("the number of bits overflows 64 bits");
  if (bits % 8 != 0) place.refuse("its ", bits, " bits are no whole number of bytes");
  return bits / 8;
}

void check_range(const Place& place, const SafetensorsEntry& entry, uint64_t data_bytes) {
  if (entry.begin > entry.end) place.refuse("data_offsets begin ", entry.begin, " is above end ", entry.end);
  if (entry.end > data_bytes)
    place.refuse("data_offsets end ", entry.end, " is past the end of the data, ", data_bytes, " bytes");
  const uint64_t bytes = declared_bytes(place, entry);
  if (entry.end - entry.begin != bytes)
    place.refuse("data_offsets span ", entry.end - entry.begin, " bytes, its shape and dtype need ", bytes);
}

std::vector<SafetensorsEntry> read_entries(std::string_view file, dom::object object) {
  std::vector<SafetensorsEntry> entries;
  std::unordered_set<std::string_view> seen;
  for (const auto [key, value] : object) {
    if (!seen.insert(key).second) refuse(file, "the header has '", printable(key), "' twice");
    if (key == "__metadata__") {
      check_metadata(file, value);
      continue;
    }
    const Place place{file, key};
    if (key.size() > kMaxSafetensorsNameBytes)
      place.refuse("the name has ", key.size(), " bytes, at most ", kMaxSafetensorsNameBytes, " are read");
    if (entries.size() == kMaxSafetensorsTensors) refuse(file, "more than ", kMaxSafetensorsTensors, " tensors");
    entries.push_back(read_entry(place, value));
  }
  return entries;
}

// Together the tensors cover the data once: no gap, no overlap, nothing after the last.
void check_cover(std::string_view file, const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    const Place place{file, entry.name};
    check_range(place, entry, data_bytes);
    if (entry.begin > covered)
      place.refuse("data bytes ", covered, " to ", entry.begin, " before it belong to no tensor");
    if (entry.begin < covered) place.refuse("its data overlap those of another tensor, which end at ", covered);
    covered = entry.end;
  }
  if (covered != data_bytes) refuse(file, data_bytes - covered, " bytes follow the last tensor's data");
}

}  // namespace

uint64_t safetensors_header_bytes(std::string_view file, const unsigned char (&prefix)[kSafetensorsPrefixBytes],
                                  uint64_t file_bytes) {
  uint64_t length = 0;
  for (size_t i = 0; i < kSafetensorsPrefixBytes; ++i) length |= uint64_t{prefix[i]} << (8 * i);
  if (length > kMaxSafetensorsHeaderBytes)
    refuse(file, "the header is declared ", length, " bytes long, at most ", kMaxSafetensorsHeaderBytes, " are read");
  if (kSafetensorsPrefixBytes + length > file_bytes)
    refuse(file, "the header is declared ", length, " bytes long, the file has ", file_bytes,
           ": the download is not complete");
  if (length == 0) refuse(file, "the header is empty");
  return length;
}

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view file, std::string_view json,
                                                       uint64_t data_bytes) {
  dom::parser parser;
  const simdjson::padded_string padded(json);
  if (json.empty()) refuse(file, "the header is empty");
  dom::object object;
  if (parse_json(file, json, parser, padded).get(object) != simdjson::SUCCESS) refuse(file, "the header is no object");
  std::vector<SafetensorsEntry> entries = read_entries(file, object);
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  const uint64_t declared = entries.empty() ? 0 : entries.back().end;
  check_cover(file, entries, std::max(declared, data_bytes));
  if (declared > data_bytes) {
    const auto before = static_cast<double>(kSafetensorsPrefixBytes + json.size());
    refuse(file, "the download is not complete: the file has ",
           human_bytes_of(before + static_cast<double>(data_bytes)), " of ",
           human_bytes_of(before + static_cast<double>(declared)));
  }
  return entries;
}

}  // namespace headrace
