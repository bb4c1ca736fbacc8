#include "headrace/weights/lora_adapter.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "headrace/core/file_exists.h"
#include "headrace/core/parallel.h"
#include "headrace/core/printable.h"
#include "headrace/weights/other_parts.h"

namespace headrace {
namespace {

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";  // of every module that PEFT wraps
constexpr std::string_view kWeight = ".weight";            // of the tensor of a module

// One of several networks of a layer.
bool is_expert(std::string_view weight) { return weight.find(".experts.") != weight.npos; }

// Name of a tensor that PEFT stores for a module. Saving turns "lora_A.<adapter's name>.weight" into "lora_A.weight".
struct StoredName {
  enum class Kind : uint8_t { kA, kB, kEmbeddingA, kEmbeddingB, kMagnitude, kCopy, kOther } kind = Kind::kOther;
  std::string weight;  // of the checkpoint
};

StoredName read_name(std::string_view stored) {
  using Kind = StoredName::Kind;
  if (!stored.starts_with(kPrefix)) return {};
  stored.remove_prefix(kPrefix.size());
  const size_t at = stored.rfind(".lora_");
  if (at == stored.npos) {
    std::string weight(stored);
    for (const std::string_view wrapper : {".base_layer", ".modules_to_save"}) {
      if (const size_t found = weight.rfind(wrapper); found != weight.npos) weight.erase(found, wrapper.size());
    }
    const bool plain = weight.ends_with(kWeight) || weight.ends_with(".bias");
    return plain ? StoredName{Kind::kCopy, weight} : StoredName{};
  }
  constexpr std::pair<std::string_view, Kind> kKinds[] = {{".lora_embedding_A", Kind::kEmbeddingA},
                                                          {".lora_embedding_B", Kind::kEmbeddingB},
                                                          {".lora_magnitude_vector", Kind::kMagnitude},
                                                          {".lora_A.", Kind::kA},
                                                          {".lora_B.", Kind::kB}};
  const std::string_view rest = stored.substr(at);
  for (const auto& [begin, kind] : kKinds) {
    const bool is_linear = kind == Kind::kA || kind == Kind::kB;
    if (at > 0 && rest.starts_with(begin) && (!is_linear || rest.ends_with(kWeight)))
      return {kind, str(stored.substr(0, at), kWeight)};
  }
  return {};
}

bool is_float(const SafetensorsEntry& entry) {
  const std::optional<DType> dtype = entry.dtype->dtype;
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF64;
}

Shape shape_of(const SafetensorsEntry& entry) {
  return Shape(std::vector<int64_t>(entry.shape.begin(), entry.shape.end()));
}

std::vector<double> transposed(const std::vector<double>& matrix, size_t columns) {
  std::vector<double> out(matrix.size());
  const size_t rows = matrix.size() / columns;
  for (size_t i = 0; i < matrix.size(); ++i) out[i % columns * rows + i / columns] = matrix[i];
  return out;
}

// A copy, since it does not always lie aligned in the file.
Tensor tensor_of(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  Tensor copy(*entry.dtype->dtype, shape_of(entry));
  std::memcpy(copy.data(), file.data(entry), entry.end - entry.begin);
  return copy;
}

bool are_equal(const SafetensorsFile& file, const SafetensorsEntry& entry, const StoredTensor& other, int threads) {
  if (is_usable_in_place(other) && entry.dtype->dtype == other.dtype)
    return std::memcmp(file.data(entry), other.data.data(), other.data.size()) == 0;
  const Tensor one = tensor_of(file, entry), two = read_tensor(other, threads);
  for (int64_t i = 0; i < one.numel(); ++i) {
    if (element_as_double(one, i) != element_as_double(two, i)) return false;
  }
  return true;
}

// Row `o` of a matrix, or one element of a vector.
std::vector<double> row_of(const TensorView& x, int64_t o) {
  std::vector<double> row(static_cast<size_t>(x.numel() / x.dim(0)));
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = element_as_double(x, o * static_cast<int64_t>(row.size()) + static_cast<int64_t>(i));
  return row;
}

double length_of(const std::vector<double>& row) {
  double squares = 0;
  for (const double value : row) squares += value * value;
  return std::sqrt(squares);
}

std::string_view module_of(std::string_view weight) { return weight.substr(0, weight.rfind('.')); }

}  // namespace

LoraAdapter LoraAdapter::open(const std::filesystem::path& directory, SigbusGuard* guard) {
  LoraConfig config(read_json_file(directory / kConfigFile));
  HR_REQUIRE(file_exists(directory / kWeightsFile) || !file_exists(directory / "adapter_model.bin"),
             ErrorCode::kUnsupported, directory.string(), ": adapter_model.bin is a pickle file; supported is ",
             kWeightsFile);
  return LoraAdapter(SafetensorsFile(directory / kWeightsFile, guard), std::move(config));
}

LoraAdapter::LoraAdapter(SafetensorsFile file, LoraConfig config) : file_(std::move(file)), config_(std::move(config)) {
  for (const SafetensorsEntry& entry : file_.entries()) add(entry);
  const auto has_factors = [](const auto& each) { return each.second.a != nullptr || each.second.b != nullptr; };
  HR_REQUIRE(std::ranges::any_of(changes_, has_factors), ErrorCode::kModelFile, name(), ": has no factors");
  for (auto& [weight, change] : changes_) check(weight, change);
  check_saved_modules();
  adapts_experts_ = std::ranges::any_of(changes_, [](const auto& each) { return is_expert(each.first); });
}

void LoraAdapter::add(const SafetensorsEntry& entry) {
  using Kind = StoredName::Kind;
  const StoredName read = read_name(entry.name);
  HR_REQUIRE(read.kind != Kind::kOther, ErrorCode::kUnsupported, name(), ": tensor '", printable(entry.name),
             "' is neither a factor nor a copy of a module's tensor, expected ", kPrefix,
             "<module>.lora_A.weight, lora_B.weight or weight");
  const bool is_matrix = entry.shape.size() == 2 || read.kind == Kind::kCopy || read.kind == Kind::kMagnitude;
  HR_REQUIRE(is_matrix, ErrorCode::kModelFile, name(), ": tensor '", printable(entry.name), "' is no matrix");
  HR_REQUIRE(is_float(entry), ErrorCode::kModelFile, name(), ": tensor '", printable(entry.name), "' has dtype ",
             entry.dtype->name, ", expected F32, BF16, F16 or F64");
  Change& change = changes_[read.weight];
  const bool is_a = read.kind == Kind::kA || read.kind == Kind::kEmbeddingA;
  const SafetensorsEntry*& slot = read.kind == Kind::kCopy        ? change.copy
                                  : read.kind == Kind::kMagnitude ? change.magnitude
                                  : is_a                          ? change.a
                                                                  : change.b;
  HR_REQUIRE(slot == nullptr, ErrorCode::kModelFile, name(), ": tensor '", printable(entry.name),
             "' is there under a second name");
  slot = &entry;
  change.is_embedding |= read.kind == Kind::kEmbeddingA || read.kind == Kind::kEmbeddingB;
}

void LoraAdapter::check(const std::string& weight, Change& c) const {
  if (c.a == nullptr && c.b == nullptr && c.magnitude == nullptr) return;
  HR_REQUIRE(c.a != nullptr && c.b != nullptr, ErrorCode::kModelFile, name(), ": '", printable(weight),
             "' has no lora_", c.a == nullptr ? "A" : "B");
  const LoraConfig::Factors stated = config_.factors_of(module_of(weight));
  const auto rank_a = static_cast<int64_t>(c.a->shape[0]), rank_b = static_cast<int64_t>(c.b->shape[1]);
  HR_REQUIRE(rank_a == stated.rank && rank_b == stated.rank, ErrorCode::kModelFile, name(), ": '", printable(weight),
             "' has ranks ", rank_a, " and ", rank_b, ", expected ", stated.rank, " as in ", kConfigFile);
  c.rank = stated.rank, c.scale = stated.scale;
  HR_REQUIRE(!c.is_embedding || !config_.has_magnitudes(), ErrorCode::kUnsupported, name(), ": '", printable(weight),
             "' is an embedding under use_dora, which is not supported");
  HR_REQUIRE((c.magnitude != nullptr) == config_.has_magnitudes(), ErrorCode::kModelFile, name(), ": '",
             printable(weight), "' has ", c.magnitude != nullptr ? "a" : "no", " lora_magnitude_vector, use_dora in ",
             kConfigFile, " is ", config_.has_magnitudes() ? "true" : "false");
}

// PEFT's names are ends of a module's: "norm" saves every layer's input_layernorm, too.
void LoraAdapter::check_saved_modules() const {
  for (const std::string& module : config_.modules_to_save()) {
    const auto is_copy = [&](const auto& each) { return each.second.copy && module_of(each.first).ends_with(module); };
    HR_REQUIRE(std::ranges::any_of(changes_, is_copy), ErrorCode::kModelFile, name(), ": has no copy of '",
               printable(module), "', which modules_to_save in ", kConfigFile, " names");
  }
}

int64_t LoraAdapter::max_rank() const {
  int64_t rank = 0;
  for (const auto& [weight, change] : changes_) rank = std::max(rank, change.rank);
  return rank;
}

std::vector<std::string> LoraAdapter::weights() const {
  std::vector<std::string> names;
  for (const auto& [weight, change] : changes_) names.push_back(weight);
  return names;
}

void LoraAdapter::move(const TextLayout& own, const TextLayout& stored) {
  std::map<std::string, Change, std::less<>> moved;
  for (const auto& [weight, change] : changes_) {
    const auto name = is_of_other_part(weight) ? std::nullopt : moved_name(weight, own, stored);
    moved.emplace(name.value_or(weight), change);
  }
  HR_REQUIRE(moved.size() == changes_.size(), ErrorCode::kModelFile, name(),
             ": names some weights twice, under different prefixes");
  changes_ = std::move(moved);
  own_ = own, stored_ = stored;
}

void LoraAdapter::forget_equal_copy(std::string_view weight, const StoredTensor& stored, int threads) {
  const auto found = changes_.find(weight);
  const SafetensorsEntry* copy = found->second.copy;
  if (copy == nullptr || shape_of(*copy) != stored.shape || (!stored.dtype && !stored.format)) return;
  if (!are_equal(file_, *copy, stored, threads)) return;
  found->second.copy = nullptr;
  if (found->second.a == nullptr) changes_.erase(found);
}

void LoraAdapter::require_fits(std::string_view weight, const Shape& shape) const {
  const Change& c = changes_.find(weight)->second;
  if (c.copy != nullptr) {
    HR_REQUIRE(shape_of(*c.copy) == shape, ErrorCode::kModelFile, name(), ": the copy of '", printable(weight), "' is ",
               shape_of(*c.copy), ", expected ", shape, " as in the checkpoint");
  }
  if (c.a == nullptr) return;
  const auto b_rows = static_cast<int64_t>(c.b->shape[0]), a_columns = static_cast<int64_t>(c.a->shape[1]);
  const Shape own = c.is_embedding ? Shape{a_columns, b_rows} : Shape{b_rows, a_columns};
  HR_REQUIRE(own == shape, ErrorCode::kModelFile, name(), ": the factors of '", printable(weight), "' make ", own,
             ", expected ", shape);
  if (c.magnitude == nullptr) return;
  HR_REQUIRE(shape_of(*c.magnitude) == Shape{shape[0]}, ErrorCode::kModelFile, name(), ": the magnitudes of '",
             printable(weight), "' are ", shape_of(*c.magnitude), ", expected ", Shape{shape[0]});
}

void LoraAdapter::require_adapts_what_it_names(std::string_view weight, const Shape& shape) const {
  const auto found = changes_.find(weight);
  const bool has_factors = found != changes_.end() && found->second.a != nullptr;
  if (has_factors || shape.rank() != 2 || !weight.ends_with(kWeight)) return;
  if (is_expert(weight) && !adapts_experts_) return;
  const std::string own = moved_name(weight, stored_, own_).value_or(std::string(weight));
  HR_REQUIRE(!config_.targets().contains(module_of(own)), ErrorCode::kModelFile, name(), ": has no factors of '",
             printable(weight), "', which target_modules in ", kConfigFile, " names");
}

std::vector<double> LoraAdapter::values(const SafetensorsEntry& entry) const {
  const Tensor copy = tensor_of(file_, entry);
  std::vector<double> out(static_cast<size_t>(copy.numel()));
  for (int64_t i = 0; i < copy.numel(); ++i) {
    const double value = element_as_double(copy, i);
    HR_REQUIRE(std::isfinite(value), ErrorCode::kModelFile, name(), ": tensor '", printable(entry.name), "' holds ",
               value, " at element ", i, ", expected finite numbers");
    out[static_cast<size_t>(i)] = value;
  }
  return out;
}

LoraAdapter::Factors LoraAdapter::factors(const Change& c) const {
  if (c.a == nullptr) return {};
  if (!c.is_embedding) return {values(*c.a), values(*c.b)};
  const auto rank = static_cast<size_t>(c.rank);
  return {transposed(values(*c.b), rank), transposed(values(*c.a), static_cast<size_t>(c.a->shape[1]))};
}

std::optional<LowRankChange> LoraAdapter::change_beside(std::string_view weight) const {
  const Change& c = changes_.find(weight)->second;
  if (c.a == nullptr || c.copy != nullptr || c.magnitude != nullptr || c.is_embedding) return std::nullopt;
  const Factors f = factors(c);
  LowRankChange change{Tensor(DType::kF32, shape_of(*c.a)), Tensor(DType::kF32, shape_of(*c.b))};
  for (size_t i = 0; i < f.a.size(); ++i) change.a.data_as<float>()[i] = static_cast<float>(f.a[i]);
  for (size_t i = 0; i < f.b.size(); ++i) change.b.data_as<float>()[i] = static_cast<float>(c.scale * f.b[i]);
  return change;
}

// Source: Hu et al. 2021, LoRA.
Tensor LoraAdapter::merged(std::string_view weight, const TensorView& base, int threads) const {
  const Change& c = changes_.find(weight)->second;
  const Factors f = factors(c);
  const Tensor copy = c.copy != nullptr ? tensor_of(file_, *c.copy) : Tensor();
  const TensorView from = c.copy != nullptr ? copy.view() : base;
  const std::vector<double> lengths = c.magnitude != nullptr ? values(*c.magnitude) : std::vector<double>();
  const auto rank = static_cast<size_t>(c.rank);
  Tensor result(base.dtype(), base.shape());
  std::atomic<bool> overflows = false;
  parallel_for(threads, base.dim(0), [&](int64_t o) {
    std::vector<double> row = row_of(from, o), delta(row.size());
    const bool finite = c.copy != nullptr || std::ranges::all_of(row, [](double x) { return std::isfinite(x); });
    for (size_t r = 0; r < rank; ++r) {
      const double factor = c.scale * f.b[static_cast<size_t>(o) * rank + r];
      for (size_t i = 0; i < row.size(); ++i) delta[i] += factor * f.a[r * row.size() + i];
    }
    for (size_t i = 0; i < row.size(); ++i) row[i] += delta[i];
    const double stretch = lengths.empty() ? 1 : lengths[static_cast<size_t>(o)] / length_of(row);
    for (size_t i = 0; i < row.size(); ++i) {
      const int64_t at = o * static_cast<int64_t>(row.size()) + static_cast<int64_t>(i);
      set_element(result, at, row[i] * stretch);
      if (finite && !std::isfinite(element_as_double(result, at))) overflows = true;
    }
  });
  HR_REQUIRE(!overflows, ErrorCode::kModelFile, name(), ": the ", c.copy != nullptr ? "copy and " : "", "factors of '",
             printable(weight), "' add more than ", name_of(base.dtype()), " holds");
  return result;
}

}  // namespace headrace
