#include "headrace/gguf/gguf_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <type_traits>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"

namespace headrace {
namespace {

constexpr uint64_t kDataAlignment = 32;  // the format's default
constexpr uint32_t kArrayType = 9;

uint64_t aligned(uint64_t bytes) { return (bytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment; }

template <class Value>
constexpr uint32_t kTypeOf = 0;
template <>
constexpr uint32_t kTypeOf<uint16_t> = 2;
template <>
constexpr uint32_t kTypeOf<uint32_t> = 4;
template <>
constexpr uint32_t kTypeOf<int32_t> = 5;
template <>
constexpr uint32_t kTypeOf<float> = 6;
template <>
constexpr uint32_t kTypeOf<bool> = 7;
template <>
constexpr uint32_t kTypeOf<std::string> = 8;
template <>
constexpr uint32_t kTypeOf<uint64_t> = 10;
template <>
constexpr uint32_t kTypeOf<int64_t> = 11;

using HeaderBytes = std::vector<unsigned char>;

template <class Number>
void append_number(HeaderBytes& bytes, Number number) {
  std::array<unsigned char, sizeof number> own;
  std::memcpy(own.data(), &number, sizeof number);
  bytes.insert(bytes.end(), own.begin(), own.end());
}

void append_value(HeaderBytes& bytes, const std::string& text) {
  append_number(bytes, uint64_t{text.size()});
  bytes.insert(bytes.end(), text.begin(), text.end());
}

template <class Number>
requires std::is_arithmetic_v<Number>
void append_value(HeaderBytes& bytes, Number number) { append_number(bytes, number); }

template <class Value>
void append_typed(HeaderBytes& bytes, const Value& value) {
  append_number(bytes, kTypeOf<Value>);
  append_value(bytes, value);
}

template <class Element>
void append_typed(HeaderBytes& bytes, const std::vector<Element>& elements) {
  append_number(bytes, kArrayType);
  append_number(bytes, kTypeOf<Element>);
  append_number(bytes, uint64_t{elements.size()});
  for (const Element& element : elements) append_value(bytes, element);
}

HeaderBytes header_of(const GgufContents& contents) {
  HeaderBytes bytes = {'G', 'G', 'U', 'F'};
  append_number(bytes, uint32_t{3});
  append_number(bytes, uint64_t{contents.tensors.size()});
  append_number(bytes, uint64_t{contents.keys.size()});
  for (const GgufKey& key : contents.keys) {
    append_value(bytes, key.name);
    std::visit([&](const auto& value) { append_typed(bytes, value); }, key.value);
  }
  uint64_t begin = 0;
  for (const GgufTensorToWrite& tensor : contents.tensors) {
    append_value(bytes, tensor.name);
    append_number(bytes, static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) append_number(bytes, dim);
    append_number(bytes, tensor.type->id);
    append_number(bytes, begin);
    begin += aligned(tensor.bytes());
  }
  bytes.resize(aligned(bytes.size()), 0);
  return bytes;
}

uint64_t data_bytes(const GgufContents& contents) {
  uint64_t bytes = 0;
  for (const GgufTensorToWrite& tensor : contents.tensors) bytes += aligned(tensor.bytes());
  return bytes;
}

std::filesystem::path hidden_beside(const std::filesystem::path& path) {
  return path.parent_path() / str(".", path.filename().string(), ".", getpid(), ".unfinished");
}

}  // namespace

uint64_t GgufTensorToWrite::bytes() const {
  uint64_t elements = 1;
  for (const uint64_t dim : dims) elements *= dim;
  return elements / type->block_elements * type->block_bytes;
}

uint64_t GgufContents::file_bytes() const { return header_of(*this).size() + data_bytes(*this); }

GgufWriter::GgufWriter(std::filesystem::path path, const GgufContents& contents)
    : path_(std::move(path)), unfinished_(hidden_beside(path_)) {
  for (const GgufTensorToWrite& tensor : contents.tensors) tensor_bytes_.push_back(tensor.bytes());
  const HeaderBytes header = header_of(contents);
  file_bytes_ = header.size() + data_bytes(contents);
  file_ = open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail(errno);
  try {
    // A file system that cannot reserve space fails at the write that finds none.
    const int status = fallocate(file_, 0, 0, static_cast<off_t>(file_bytes_));
    if (status != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) fail(errno);
    append(header);
  } catch (...) {
    close(file_), unlink(unfinished_.c_str());
    throw;
  }
}

GgufWriter::~GgufWriter() {
  if (file_ < 0) return;
  close(file_);
  unlink(unfinished_.c_str());
}

void GgufWriter::fail(int error) const {
  throw Error(ErrorCode::kIo, str(path_.string(), ": ", human_bytes(file_bytes_),
                                  " cannot be written: ", std::generic_category().message(error)));
}

void GgufWriter::append(std::span<const unsigned char> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    at_ += static_cast<uint64_t>(written);
  }
}

void GgufWriter::pad() {
  constexpr std::array<unsigned char, kDataAlignment> kZeros{};
  append(std::span(kZeros).first(aligned(at_) - at_));
}

void GgufWriter::write(std::span<const unsigned char> bytes) {
  if (left_ == 0 && next_ < tensor_bytes_.size()) left_ = tensor_bytes_[next_++];
  HR_REQUIRE(bytes.size() <= left_, ErrorCode::kInvalidArgument, path_.string(), ": tensor ", next_, " has ", left_,
             " bytes left, found ", bytes.size());
  append(bytes);
  left_ -= bytes.size();
  if (left_ == 0) pad();
}

void GgufWriter::finish() {
  HR_REQUIRE(left_ == 0 && next_ == tensor_bytes_.size() && at_ == file_bytes_, ErrorCode::kInvalidArgument,
             path_.string(), ": ", at_, " bytes were written, expected ", file_bytes_);
  if (fsync(file_) != 0) fail(errno);
  if (rename(unfinished_.c_str(), path_.c_str()) != 0) fail(errno);
  close(std::exchange(file_, -1));
}

}  // namespace headrace
