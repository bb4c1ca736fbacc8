// Makes the golden checkpoints, whose weights a formula gives.
#include <fstream>
#include <iomanip>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

#include "headrace/core/tensor.h"
#include "support/safetensors_writer.h"
#include "support/source_tree.h"

namespace headrace::testing_support {
namespace {

// tools/golden/formula.py states the formula. Its sums and products are exact in double.
class Piece {
 public:
  Piece(uint64_t seed, double mean, int64_t spread) : state_(seed << 32), mean_(mean), spread_(spread) {}
  double next() { return mean_ + static_cast<double>(spread_ * normal()) / 4294967296.0; }

 private:
  // The next number of SplitMix64: the sum of its four parts, less their mean.
  int64_t normal() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    int64_t sum = -131070;
    for (int part = 0; part < 4; ++part) sum += static_cast<int64_t>(z >> (16 * part) & 0xFFFF);
    return sum;
  }

  uint64_t state_;
  double mean_;
  int64_t spread_;
};

Shape shape_of(const std::string& sizes) {  // such as 96x40
  std::vector<int64_t> shape;
  std::istringstream in(sizes);
  for (std::string size; std::getline(in, size, 'x');) shape.push_back(std::stoll(size));
  return Shape(shape);
}

struct Named {
  std::string name;
  Tensor tensor;
};

// One line of weights.txt.
Named made(const std::string& line) {
  std::istringstream in(line);
  std::string name, dtype, sizes;
  in >> name >> dtype >> sizes;
  const Shape shape = shape_of(sizes);
  Tensor tensor(dtype == "F32" ? DType::kF32 : DType::kBF16, shape);
  const Tensor rounded(DType::kBF16, shape);
  uint64_t seed = 0;
  double mean = 0;
  int64_t spread = 0, count = 0, at = 0;
  while (in >> seed >> mean >> spread >> count) {
    HR_REQUIRE(at + count <= shape.numel(), ErrorCode::kModelFile, name, " is filled beyond its end");
    for (Piece piece(seed, mean, spread); count > 0; --count, ++at) {
      set_element(rounded, at, static_cast<float>(piece.next()));
      set_element(tensor, at, element_as_double(rounded, at));
    }
  }
  HR_REQUIRE(at == shape.numel(), ErrorCode::kModelFile, name, " has ", shape.numel(), " elements, of which ", at,
             " are described");
  return {name, std::move(tensor)};
}

uint64_t fnv1a(uint64_t hash, const Tensor& tensor) {
  const auto* bytes = static_cast<const uint8_t*>(tensor.data());
  for (int64_t i = 0; i < tensor.bytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001B3;
  return hash;
}

std::string hexadecimal(uint64_t value) {
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << value;
  return out.str();
}

void write_model(const std::filesystem::path& description, const std::filesystem::path& model) {
  std::ifstream in(description);
  std::string line;
  std::getline(in, line);
  const std::string expected = line;
  std::vector<Named> tensors;
  uint64_t hash = 0xCBF29CE484222325;
  while (std::getline(in, line)) hash = fnv1a(hash, tensors.emplace_back(made(line)).tensor);
  const std::string made_hash = hexadecimal(hash);
  HR_REQUIRE(made_hash == expected, ErrorCode::kModelFile, description.string(), ": the weights that are made hash to ",
             made_hash, ", expected ", expected, " as tools/golden/formula.py made them");
  std::vector<test::NamedTensor> views;
  for (const Named& named : tensors) views.push_back({named.name, named.tensor});
  test::write_safetensors(model, views);
}

// The folders that this process has made.
struct Made {
  std::mutex mutex;
  const test::TempDir root;
  std::map<std::string, std::filesystem::path> folders;
};

}  // namespace

std::filesystem::path golden_folder(const std::string& name) {
  std::filesystem::path stored = source_tree() / "tests" / "golden" / name;
  if (!std::filesystem::exists(stored / "weights.txt")) return stored;
  static Made made_here;
  const std::lock_guard lock(made_here.mutex);
  std::filesystem::path& folder = made_here.folders[name];
  if (folder.empty()) {
    std::filesystem::copy(stored, made_here.root / name);
    write_model(stored / "weights.txt", made_here.root / name / "model.safetensors");
    folder = made_here.root / name;
  }
  return folder;
}

}  // namespace headrace::testing_support
