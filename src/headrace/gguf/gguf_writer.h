// Writes a GGUF file, version 3, tensor by tensor.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "headrace/gguf/gguf_type.h"

namespace headrace {

using GgufKeyValue =
    std::variant<uint16_t, uint32_t, int32_t, uint64_t, int64_t, float, bool, std::string, std::vector<int32_t>,
                 std::vector<int64_t>, std::vector<float>, std::vector<std::string>>;

struct GgufKey {
  std::string name;
  GgufKeyValue value;
};

struct GgufTensorToWrite {
  std::string name;
  const GgufType* type = nullptr;  // find_gguf_type
  std::vector<uint64_t> dims;      // the fastest-varying one first

  uint64_t bytes() const;
};

// The header of a file.
struct GgufContents {
  std::vector<GgufKey> keys;               // no name twice
  std::vector<GgufTensorToWrite> tensors;  // in the order of their data; no name twice

  uint64_t file_bytes() const;
};

// The file appears under its name when it is complete; until then its bytes are in a hidden file beside it, which a
// failure removes. Not thread-safe.
class GgufWriter {
 public:
  // Reserves the whole file's bytes and writes the header. Error kIo, one sentence: the file cannot be created, or the
  // disk is full.
  GgufWriter(std::filesystem::path path, const GgufContents& contents);
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;
  ~GgufWriter();

  // Appends to the data of the tensor at hand; a tensor that is complete is followed by the next one. Error kIo;
  // kInvalidArgument: more bytes than the tensor has.
  void write(std::span<const unsigned char> bytes);
  // Gives the complete file its name; one that has the name is replaced. Error kIo; kInvalidArgument: data are missing.
  void finish();

 private:
  void append(std::span<const unsigned char> bytes);
  void pad();
  [[noreturn]] void fail(int error) const;

  std::filesystem::path path_, unfinished_;
  std::vector<uint64_t> tensor_bytes_;
  uint64_t file_bytes_, at_ = 0, left_ = 0;  // left: bytes of the tensor at hand
  size_t next_ = 0;                          // the tensor behind it
  int file_ = -1;
};

}  // namespace headrace
