#include "support/safetensors_writer.h"

#include <stdlib.h>

#include <fstream>

namespace headrace::test {
namespace {

std::string_view stored_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kBF16: return "BF16";
    case DType::kF16: return "F16";
    case DType::kF64: return "F64";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
    case DType::kU8: return "U8";
    case DType::kE4M3: return "F8_E4M3";
    case DType::kI8: return "I8";
  }
  return "";
}

std::string json_list(const Shape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.rank(); ++i) out += str(i ? "," : "", shape[i]);
  return out + "]";
}

}  // namespace

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "headrace_test_XXXXXX").string();
  HR_REQUIRE(::mkdtemp(name.data()), ErrorCode::kIo, "TempDir: cannot create ", name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  HR_REQUIRE(out.good(), ErrorCode::kIo, "write_file: cannot write ", path.string());
}

std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>((uint64_t{header.size()} >> (8 * i)) & 255);
  return out.append(header).append(data);
}

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors, int header_padding) {
  std::string header = "{", data;
  for (const NamedTensor& item : tensors) {
    const size_t begin = data.size();
    data.append(static_cast<const char*>(item.tensor.data()), static_cast<size_t>(item.tensor.bytes()));
    header +=
        str(header.size() > 1 ? "," : "", "\"", item.name, "\":{\"dtype\":\"", stored_name(item.tensor.dtype()),
            "\",\"shape\":", json_list(item.tensor.shape()), ",\"data_offsets\":[", begin, ",", data.size(), "]}");
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8 + static_cast<size_t>(header_padding), ' ');
  write_file(path, safetensors_bytes(header, data));
}

}  // namespace headrace::test
