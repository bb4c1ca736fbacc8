#include "headrace/weights/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "headrace/core/device_runtime.h"
#include "headrace/core/printable.h"
#include "headrace/weights/checkpoint_files.h"
#include "headrace/weights/gguf_tensors.h"

namespace headrace {

namespace {

// Returns true for the projections of Gated DeltaNet's alpha and beta, which decide what a state keeps: they are
// computed with floats.
bool gates_state(std::string_view name) {
  return name.ends_with("linear_attn.in_proj_a.weight") || name.ends_with("linear_attn.in_proj_b.weight");
}

Shape shape_of_entry(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  std::vector<int64_t> dims;
  for (const uint64_t dim : entry.shape) {
    HR_REQUIRE(dim <= uint64_t{std::numeric_limits<int64_t>::max()}, ErrorCode::kModelFile, file.name(), ": tensor '",
               printable(entry.name), "': a dimension of ", dim, " is beyond 2^63 - 1");
    dims.push_back(static_cast<int64_t>(dim));
  }
  return Shape(std::span<const int64_t>(dims));
}

StoredTensor stored_tensor(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  StoredTensor stored;
  stored.file = &file.name();
  stored.name = entry.name;
  stored.type = entry.dtype->name;
  stored.dtype = entry.dtype->dtype;
  stored.shape = shape_of_entry(file, entry);
  stored.data = {file.data(entry), static_cast<size_t>(entry.end - entry.begin)};
  return stored;
}

}  // namespace

struct Checkpoint::State {
  struct RandomSource {
    uint64_t seed;
    int threads;
  };

  std::string origin = "random checkpoint";  // a directory's path where there is one
  std::vector<SafetensorsFile> files;
  std::vector<GgufFile> gguf_files;
  std::string first_file;  // its path
  AbsentTensors absent;
  std::map<std::string, StoredTensor, std::less<>> stored;  // refers to the files, which do not change
  std::optional<RandomSource> random;
  std::span<const NameRule> rules;  // not owned
  std::optional<LoraAdapter> adapter;
  struct Quantisation {
    QuantPreset preset;
    QuantModel model;
  };
  std::optional<Quantisation> quantisation;
  int threads = 1;
  std::map<std::string, Tensor, std::less<>> owned;  // made up, or aligned copies
  std::map<std::string, PackedWeight, std::less<>> packed;
  std::map<std::string, LowRankChange, std::less<>> changes;  // of packed weights
  std::set<std::string, std::less<>> used;
  DeviceRuntime* runtime = &cpu_runtime();                   // not owned
  std::map<std::string, TensorView, std::less<>> on_device;  // copies, by stored name
  std::vector<Tensor> device_memory;                         // of these

  ProgressCallback progress;
  LogCallback log;
  int64_t total_bytes = 0, done_bytes = 0;

  void report(std::string_view name, int64_t bytes) {
    done_bytes += bytes;
    if (progress) progress(name, done_bytes, total_bytes);
  }

  void copy_to(const TensorView& place, const TensorView& host) const {
    runtime->copy_to_device(place.data(), host.data(), static_cast<size_t>(host.bytes()));
  }

  const StoredTensor& at(std::string_view name) const {
    const auto found = stored.find(name);
    const auto listed = absent.find(name);
    HR_REQUIRE(listed == absent.end(), ErrorCode::kModelFile, listed->second, ": tensor '", printable(name),
               "' is listed in the index and not in the file");
    HR_REQUIRE(found != stored.end(), ErrorCode::kModelFile, first_file.empty() ? origin : first_file, ": tensor '",
               printable(name), "' is missing",
               files.size() + gguf_files.size() > 1 ? " here and in the other shards" : "");
    return found->second;
  }

  void read_safetensors(const std::filesystem::path& directory, const CheckpointOptions& options) {
    CheckpointFiles opened = open_checkpoint_files(directory, options);
    files = std::move(opened.files);
    absent = std::move(opened.absent);
    first_file = files.front().name();
    for (const SafetensorsFile& file : files)
      for (const SafetensorsEntry& entry : file.entries()) stored.emplace(entry.name, stored_tensor(file, entry));
  }
  void read_gguf(const std::filesystem::path& file, const CheckpointOptions& options) {
    gguf_files = open_gguf(file, options.guard);
    first_file = gguf_files.front().header().file();
    for (auto& [name, tensor] : huggingface_tensors(gguf_files)) {
      const auto [at, is_new] = stored.emplace(name, std::move(tensor));
      HR_REQUIRE(is_new, ErrorCode::kModelFile, *at->second.file, ": two tensors are '", printable(name), "'");
    }
    warn_of_coarse_gates();
  }
  bool packs(const std::string& name) const {
    return runtime->device().type == DeviceType::kCPU && is_packable(at(name)) && !gates_state(name) &&
           (!is_changed(name) || changes.contains(name));
  }
  bool is_changed(std::string_view name) const { return adapter && adapter->adapts(name); }
  // Returns true for floats of which quantize() makes blocks. Those of a family with names of its own are not known
  // here.
  bool becomes_blocks(const std::string& name) const {
    const StoredTensor& found = at(name);
    return quantisation && found.dtype && found.shape.rank() == 2 &&
           block_format_for(name, found.shape, quantisation->preset, quantisation->model);
  }
  // Prepares the adapter's factors of a quantised weight, which stays as it is. Other changes are merged into floats.
  void keep_changes_beside() {
    for (const std::string& name : adapter->weights()) {
      if (!is_packable(at(name)) && !becomes_blocks(name)) continue;
      if (auto change = adapter->change_beside(name)) changes.emplace(name, std::move(*change));
    }
  }
  void warn_of_coarse_gates() const {
    std::vector<const StoredTensor*> coarse;
    for (const auto& [name, tensor] : stored) {
      if (gates_state(name) && tensor.format && *tensor.format != BlockFormat::kQ8_0) coarse.push_back(&tensor);
    }
    if (coarse.empty() || !log) return;
    log(LogLevel::kWarning,
        str(*coarse.front()->file, ": tensor '", printable(coarse.front()->name), "' is stored in ",
            coarse.front()->type, coarse.size() > 1 ? str(", and so are ", coarse.size() - 1, " more") : "",
            ": they gate the recurrent state, and their errors grow with the text; headrace quantize keeps them at 16 "
            "bits"));
  }
  static int64_t bytes_of(const PackedWeight& weight) { return WeightView(weight.matrix()).bytes(); }

  // Absent: the weight is given as it is stored, or made up.
  std::optional<BlockFormat> format_to_make(std::string_view asked, const std::string& name, const Shape& shape) const {
    if (!quantisation || shape.rank() != 2 || (is_changed(name) && !changes.contains(name))) return std::nullopt;
    if (!random && !at(name).dtype) return std::nullopt;
    HR_REQUIRE(runtime->device().type == DeviceType::kCPU, ErrorCode::kUnsupported, "quantised weights do not run on ",
               to_string(runtime->device()), ", expected a CPU");
    return block_format_for(asked, shape, quantisation->preset, quantisation->model);
  }
  // Matrices of all experts in one tensor become one tensor each, as other checkpoints have them.
  void split_stacked_experts() {
    constexpr std::string_view kGateUp = "experts.gate_up_proj", kDown = "experts.down_proj";
    std::map<std::string, StoredTensor, std::less<>> split;
    for (const auto& [name, all] : stored) {
      const bool is_stacked = all.shape.rank() == 3 && (all.dtype || all.format);
      if (is_stacked && name.ends_with(kGateUp) && all.shape[1] % 2 == 0) {
        add_experts(name.substr(0, name.size() - std::string_view("gate_up_proj").size()), {"gate_proj", "up_proj"},
                    all, split);
      } else if (is_stacked && name.ends_with(kDown)) {
        add_experts(name.substr(0, name.size() - std::string_view("down_proj").size()), {"down_proj"}, all, split);
      } else {
        split.emplace(name, all);
      }
    }
    stored = std::move(split);
  }
  static void add_experts(const std::string& prefix, const std::vector<std::string_view>& matrices,
                          const StoredTensor& all, std::map<std::string, StoredTensor, std::less<>>& out) {
    const auto count = static_cast<int64_t>(matrices.size());
    const int64_t rows = all.shape[1] / count;
    for (int64_t i = 0; i < all.shape[0] * count; ++i) {
      out.emplace(str(prefix, i / count, ".", matrices[static_cast<size_t>(i % count)], ".weight"),
                  matrix_of_rows(all, i * rows, rows));
    }
  }
  // Replaces each tensor `grouped` by two others, which have its rows in the orders of `rows`.
  void separate(std::string_view grouped, const std::pair<RowOrder, RowOrder>& rows,
                const std::pair<std::string_view, std::string_view>& names) {
    std::map<std::string, StoredTensor, std::less<>> separated;
    for (const auto& [name, all] : stored) {
      if (!name.ends_with(grouped)) {
        separated.emplace(name, all);
        continue;
      }
      const auto expected = static_cast<int64_t>(rows.first.size() + rows.second.size());
      HR_REQUIRE(all.shape.rank() == 2 && all.rows() == expected, ErrorCode::kModelFile, *all.file, ": tensor '",
                 printable(name), "' has shape ", all.shape, ", expected ", expected, " rows");
      const std::string prefix = name.substr(0, name.size() - grouped.size());
      separated.emplace(prefix + std::string(names.first), with_rows(all, rows.first));
      separated.emplace(prefix + std::string(names.second), with_rows(all, rows.second));
    }
    stored = std::move(separated);
  }
  static StoredTensor with_rows(StoredTensor all, const RowOrder& rows) {
    all.shape = {static_cast<int64_t>(rows.size()), all.columns()};
    all.row_order = rows;
    return all;
  }
  // Makes the weight's blocks from its file's floats, or from made-up ones.
  PackedWeight quantised(const std::string& name, BlockFormat format, const Shape& expected,
                         const RandomValues& values) {
    if (!random) return quantize_and_pack(at(name), format, threads);
    const Tensor made = random_weight(random->seed, name, expected, values, random->threads);
    StoredTensor floats{.file = &origin, .name = name, .type = "BF16", .dtype = made.dtype(), .shape = expected};
    floats.data = {static_cast<const unsigned char*>(made.data()), static_cast<size_t>(made.bytes())};
    PackedWeight packed_floats = quantize_and_pack(floats, format, random->threads);
    report(name, bytes_of(packed_floats));
    return packed_floats;
  }
  // Counts the tensor as used. Errors as tensor().
  const StoredTensor& use(const std::string& name, const Shape& expected) {
    const StoredTensor& found = at(name);
    HR_REQUIRE(found.shape == expected, ErrorCode::kModelFile, *found.file, ": tensor '", printable(found.name),
               "' has shape ", found.shape, ", expected ", expected);
    HR_REQUIRE(found.dtype || found.format, ErrorCode::kUnsupported, *found.file, ": tensor '", printable(found.name),
               "' has dtype ", found.type, ", which is not supported; weights are F32, BF16 or F16");
    if (used.emplace(name).second) report(name, found.bytes());
    if (adapter) adapter->require_adapts_what_it_names(name, found.shape);
    return found;
  }

  // Returns the tensor's values: the file's own, or `copy`, which is made where they change.
  TensorView read(const std::string& name, Tensor& copy) const {
    const StoredTensor& found = at(name);
    const bool adapted = adapter && adapter->adapts(name);
    if (!adapted && is_usable_in_place(found)) {  // views are untyped; the pages are read-only
      return {const_cast<unsigned char*>(found.data.data()), *found.dtype, found.shape};
    }
    copy = read_tensor(found, threads);
    if (adapted) copy = adapter->merged(name, copy, threads);
    return copy;
  }

  // The layout under which the text model is stored; null for a family with names of its own.
  const TextLayout* layout() const {
    const auto is_used = [this](const TextLayout& l) { return stored.contains(str(l.body, "embed_tokens.weight")); };
    const auto found = std::ranges::find_if(kTextLayouts, is_used);
    return found != kTextLayouts.end() ? &*found : nullptr;
  }

  // An adapter of the text class says "model.layers" where a wrapped checkpoint stores "model.language_model.layers".
  void move_to_layout(LoraAdapter& lora) const {
    const TextLayout* own = layout();
    if (own == nullptr) return;
    const std::vector<std::string> weights = lora.weights();
    const auto fits = [&](const TextLayout& from) {
      return std::ranges::all_of(weights, [&](const std::string& weight) {
        const std::string name = moved_name(weight, from, *own).value_or(weight);
        return is_of_other_part(weight) || stored.contains(name) || name == str(own->head, "lm_head.weight");
      });
    };
    const auto from = std::ranges::find_if(kTextLayouts, fits);
    if (!fits(*own) && from != kTextLayouts.end()) lora.move(*from, *own);
  }

  // True when the checkpoint has the tensor. What changes nothing that the model reads is dropped: other parts, and a
  // copy of a tied head that equals the embedding.
  bool require_stored(LoraAdapter& lora, const std::string& weight) const {
    if (stored.contains(weight)) return true;
    if (is_of_other_part(weight)) return lora.drop(weight), false;
    const TextLayout* own = layout();
    HR_REQUIRE(own != nullptr && weight == str(own->head, "lm_head.weight"), ErrorCode::kModelFile, lora.name(), ": '",
               printable(weight), "' is not in the checkpoint that it is to adapt");
    lora.forget_equal_copy(weight, stored.find(str(own->body, "embed_tokens.weight"))->second, threads);
    HR_REQUIRE(!lora.adapts(weight), ErrorCode::kUnsupported, lora.name(), ": changes '", weight,
               "', which the checkpoint ties to its embedding: adapters of tied weights are not supported");
    return false;
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const std::filesystem::path& model, const CheckpointOptions& options) {
  auto state = std::make_unique<State>();
  state->origin = model.string();
  state->progress = options.progress;
  state->log = options.log;
  state->threads = options.threads;
  if (is_gguf_path(model)) {
    state->read_gguf(model, options);
  } else {
    state->read_safetensors(model, options);
  }
  Checkpoint checkpoint(std::move(state));
  checkpoint.state_->total_bytes = checkpoint.stored_bytes();
  return checkpoint;
}

Checkpoint Checkpoint::random(uint64_t seed, int threads, ProgressCallback progress) {
  auto state = std::make_unique<State>();
  state->progress = std::move(progress);
  state->random = State::RandomSource{seed, threads};
  return Checkpoint(std::move(state));
}

const std::string& Checkpoint::origin() const { return state_->origin; }
const std::string& Checkpoint::origin_of(std::string_view name) const {
  const auto found = state_->stored.find(stored_name(state_->rules, name));
  return found == state_->stored.end() ? state_->origin : *found->second.file;
}

bool Checkpoint::is_random() const { return state_->random.has_value(); }
bool Checkpoint::has(std::string_view name) const { return state_->stored.contains(stored_name(state_->rules, name)); }
void Checkpoint::rename(std::span<const NameRule> rules) { state_->rules = rules; }

void Checkpoint::attach(LoraAdapter adapter, int threads) {
  HR_REQUIRE(!is_random(), ErrorCode::kInvalidArgument, adapter.name(), ": random weights take no adapter");
  state_->move_to_layout(adapter);
  for (const std::string& weight : adapter.weights()) {
    if (!state_->require_stored(adapter, weight)) continue;
    const StoredTensor& stored = state_->stored.find(weight)->second;
    adapter.require_fits(weight, stored.shape);
    adapter.forget_equal_copy(weight, stored, threads);
  }
  HR_REQUIRE(!adapter.weights().empty(), ErrorCode::kModelFile, adapter.name(),
             ": changes no tensor that the model reads");
  if (state_->log) {
    state_->log(LogLevel::kInfo,
                str(adapter.name(), ": ", adapter.weights().size(), " weights are adapted, rank ", adapter.max_rank()));
  }
  state_->adapter.emplace(std::move(adapter));
  state_->keep_changes_beside();
  state_->threads = threads;
}

bool Checkpoint::is_adapted(std::string_view name) const {
  return state_->adapter && state_->adapter->adapts(stored_name(state_->rules, name));
}

bool Checkpoint::has_adapter() const { return state_->adapter.has_value(); }

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> out;
  for (const auto& [name, stored] : state_->stored) out.emplace_back(name);
  return out;
}

int64_t Checkpoint::num_elements() const {
  int64_t sum = 0;
  for (const auto& [name, stored] : state_->stored) sum += stored.shape.numel();
  if (!is_random()) return sum;
  for (const auto& [name, made] : state_->owned) sum += made.numel();
  for (const auto& [name, packed] : state_->packed) sum += packed.matrix().out * packed.matrix().in;
  return sum;
}

int64_t Checkpoint::stored_bytes() const {
  uint64_t sum = 0;
  for (const auto& [name, stored] : state_->stored) sum += static_cast<uint64_t>(stored.bytes());
  for (const auto& [name, packed] : state_->packed) {  // in place of the floats that it was made from
    const auto stored = state_->stored.find(name);
    const bool is_stored_so = stored != state_->stored.end() && stored->second.format;
    if (is_stored_so) continue;
    sum += static_cast<uint64_t>(State::bytes_of(packed));
    if (stored != state_->stored.end()) sum -= static_cast<uint64_t>(stored->second.bytes());
  }
  if (!is_random()) return static_cast<int64_t>(sum);
  for (const auto& [name, made] : state_->owned) sum += static_cast<uint64_t>(made.bytes());
  return static_cast<int64_t>(sum);
}

std::vector<BlockFormat> Checkpoint::packed_formats() const {
  std::set<BlockFormat> formats;
  for (const auto& [name, weight] : state_->packed) formats.insert(weight.matrix().format);
  return {formats.begin(), formats.end()};
}

std::optional<DType> Checkpoint::float_dtype() const {
  for (const auto& [name, stored] : state_->stored) {
    const bool floats = stored.dtype == DType::kF32 || stored.dtype == DType::kBF16 || stored.dtype == DType::kF16;
    if (floats && *stored.file == state_->first_file) return stored.dtype;
  }
  return std::nullopt;
}

const StoredTensor& Checkpoint::stored(std::string_view name) const {
  return state_->at(stored_name(state_->rules, name));
}

Shape Checkpoint::shape_of(std::string_view name) const {
  HR_REQUIRE(!is_random(), ErrorCode::kInvalidArgument, "random checkpoint: '", name, "' has no stored shape");
  return state_->at(stored_name(state_->rules, name)).shape;
}

void Checkpoint::quantize(QuantPreset preset, const QuantModel& model) {
  state_->quantisation = State::Quantisation{preset, model};
  if (state_->adapter) return state_->keep_changes_beside();
  state_->split_stacked_experts();
}

void Checkpoint::separate_projections(const GgufSizes& sizes) {
  state_->separate("in_proj_qkvz.weight", rows_of_grouped_qkvz(sizes), {"in_proj_qkv.weight", "in_proj_z.weight"});
  state_->separate("in_proj_ba.weight", rows_of_grouped_ba(sizes), {"in_proj_b.weight", "in_proj_a.weight"});
}

void Checkpoint::place_on(DeviceRuntime& runtime) { state_->runtime = &runtime; }
DeviceRuntime& Checkpoint::runtime() const { return *state_->runtime; }

TensorView Checkpoint::tensor(std::string_view asked, const Shape& expected, const RandomValues& random) {
  if (state_->runtime->device().type == DeviceType::kCPU) return host_tensor(asked, expected, random);
  const std::string name = stored_name(state_->rules, asked);
  const bool made = !is_random() && !state_->owned.contains(name);  // for the device alone: no copy stays on the host
  if (made) state_->use(name, expected);
  const auto found = state_->on_device.find(name);
  if (found != state_->on_device.end()) return found->second;
  Tensor copy_here;
  const TensorView host = made ? state_->read(name, copy_here) : host_tensor(asked, expected, random);
  const Tensor& copy = state_->device_memory.emplace_back(host.dtype(), host.shape(), *state_->runtime);
  state_->copy_to(copy, host);
  return state_->on_device.emplace(name, copy).first->second;
}

WeightView Checkpoint::weight(std::string_view asked, const Shape& expected, const RandomValues& random) {
  const std::string name = stored_name(state_->rules, asked);
  const auto format = state_->format_to_make(asked, name, expected);
  if (!format && (is_random() || !state_->packs(name))) return tensor(asked, expected, random);
  if (!is_random()) state_->use(name, expected);
  auto found = state_->packed.find(name);
  if (found == state_->packed.end()) {
    PackedWeight made =
        format ? state_->quantised(name, *format, expected, random) : pack(state_->at(name), state_->threads);
    found = state_->packed.emplace(name, std::move(made)).first;
  }
  WeightView weight(found->second.matrix());
  HR_REQUIRE(weight.shape() == expected, ErrorCode::kInvalidArgument, origin(), ": '", name, "' is ", weight.shape(),
             " already, asked for as ", expected);
  const auto change = state_->changes.find(name);
  if (change != state_->changes.end()) weight.set_change(&change->second);
  return weight;
}

void Checkpoint::place_together(std::span<const Part> parts) {
  constexpr int64_t kAlignment = 256;  // of a device's allocations
  if (state_->runtime->device().type == DeviceType::kCPU || parts.empty()) return;
  std::vector<TensorView> hosts;
  int64_t count = 0;
  for (const Part& part : parts) {
    const TensorView host = host_tensor(part.name, part.shape);
    if (state_->on_device.contains(stored_name(state_->rules, part.name)) || host.bytes() % kAlignment != 0) return;
    if (!hosts.empty() && host.dtype() != hosts[0].dtype()) return;
    count += host.numel();
    hosts.push_back(host);
  }
  const Tensor& all = state_->device_memory.emplace_back(hosts[0].dtype(), Shape{count}, *state_->runtime);
  for (size_t i = 0, at = 0; i < parts.size(); at += static_cast<size_t>(hosts[i].bytes()), ++i) {
    const TensorView place(static_cast<char*>(all.data()) + at, hosts[i].dtype(), hosts[i].shape(),
                           state_->runtime->device());
    state_->copy_to(place, hosts[i]);
    state_->on_device.emplace(stored_name(state_->rules, parts[i].name), place);
  }
}

TensorView Checkpoint::host_tensor(std::string_view asked, const Shape& expected, const RandomValues& random) {
  const std::string name = stored_name(state_->rules, asked);
  const auto owned = state_->owned.find(name);
  if (is_random()) {
    if (owned == state_->owned.end()) {
      Tensor made = random_weight(state_->random->seed, name, expected, random, state_->random->threads);
      state_->report(name, made.bytes());
      return state_->owned.emplace(name, std::move(made)).first->second;
    }
    HR_REQUIRE(owned->second.shape() == expected, ErrorCode::kInvalidArgument, "random checkpoint: '", name, "' is ",
               owned->second.shape(), " already, asked for as ", expected);
    return owned->second;
  }
  state_->use(name, expected);
  if (owned != state_->owned.end()) return owned->second;
  Tensor copy;
  const TensorView values = state_->read(name, copy);
  return copy ? state_->owned.emplace(name, std::move(copy)).first->second.view() : values;
}

void Checkpoint::require_all_used(std::span<const std::string_view> skipped_prefixes) const {
  const StoredTensor *first = nullptr, *first_skipped = nullptr;
  int64_t count = 0, num_skipped = 0;
  for (const auto& [name, stored] : state_->stored) {
    if (state_->used.contains(name)) continue;
    const bool skipped = is_of_other_part(name, skipped_prefixes);
    const StoredTensor*& one = skipped ? first_skipped : first;
    if (one == nullptr) one = &stored;
    ++(skipped ? num_skipped : count);
  }
  HR_REQUIRE(!first, ErrorCode::kModelFile, *first->file, ": tensor '", printable(first->name),
             "' is unknown to this model", count > 1 ? str(", and ", count - 1, " more") : "");
  if (first_skipped != nullptr && state_->log) {
    state_->log(LogLevel::kInfo,
                str(*first_skipped->file, ": tensor '", printable(first_skipped->name), "' is not needed and not read",
                    num_skipped > 1 ? str(", and ", num_skipped - 1, " more") : ""));
  }
}

}  // namespace headrace
