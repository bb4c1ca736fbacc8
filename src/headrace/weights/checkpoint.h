// The tensors of a model directory, by name.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/core/log.h"
#include "headrace/core/weight_view.h"
#include "headrace/weights/gguf_layout.h"
#include "headrace/weights/lora_adapter.h"
#include "headrace/weights/name_rules.h"
#include "headrace/weights/other_parts.h"
#include "headrace/weights/quant_preset.h"
#include "headrace/weights/random_tensor.h"

namespace headrace {

class SigbusGuard;
struct StoredTensor;

struct CheckpointOptions {
  ProgressCallback
      progress;     // after each tensor is handed out for the first time: its name, bytes so far, bytes in all
  int threads = 1;  // that convert tensors
  SigbusGuard* guard = nullptr;  // not owned, outlives the checkpoint; null: a file that shrinks is a SIGBUS
  LogCallback log;               // which tensors were left out, what an adapter changes
};

// Tensors from `model.safetensors`, from the shards of `model.safetensors.index.json`, from a GGUF file (under Hugging
// Face's names, gguf_tensors.h), or made up from a seed. Owns the
// mapping: views that it hands out live as long as it (moves included) and are read-only memory. Not thread-safe.
class Checkpoint {
 public:
  // Every header and the index are validated before this returns. Error kModelFile: one line naming file, tensor and
  // rule; Error kUnsupported for formats that are known and not built: pickle, quantised safetensors. Does not
  // read config.json (refuse_quantised_config).
  static Checkpoint open(const std::filesystem::path& model, const CheckpointOptions& options = {});

  // Every tensor that is asked for exists, in bf16, with values that follow from seed and name alone; has() and names()
  // answer as for an empty directory, so optional tensors are left out. To `progress`, bytes in all are 0: not known.
  static Checkpoint random(uint64_t seed, int threads, ProgressCallback progress = {});

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  // From here on tensors are asked for by their common names. `rules` is not owned and outlives the checkpoint (a
  // family's table). Errors and names() keep to what is stored.
  void rename(std::span<const NameRule> rules);

  // From here on tensor() gives the adapted weights, merged once each. The adapter may have been trained on another
  // wrapper of the text model (text_layout.h). Error kModelFile, naming the adapter's file and the weight, when it
  // changes one that is not stored or has another shape, and from tensor() when it lacks one that it says it changes;
  // kUnsupported for a head that is not stored; kInvalidArgument on random weights.
  void attach(LoraAdapter adapter, int threads);
  bool is_adapted(std::string_view name) const;
  bool has_adapter() const;

  // From here on weight() gives matrices of floats in the blocks that block_format_for() names, in memory of the
  // checkpoint; what is stored in blocks stays so. Stacked experts are read as matrices of their own. An adapter is
  // attached before: it is applied beside the blocks, or merged into floats where it cannot be, and stacked experts
  // stay so. Error kUnsupported from weight() on a device.
  void quantize(QuantPreset preset, const QuantModel& model);

  // From here on Qwen3-Next's in_proj_qkvz and in_proj_ba, whose rows are grouped by key head, are in_proj_qkv,
  // in_proj_z, in_proj_b and in_proj_a. Error kModelFile for another number of rows.
  void separate_projections(const GgufSizes& sizes);

  // From here on tensor() gives copies in this runtime's memory, made once each and owned by the checkpoint. `runtime`
  // is not owned and outlives the checkpoint. The CPU's changes nothing.
  void place_on(DeviceRuntime& runtime);
  DeviceRuntime& runtime() const;

  struct Part {
    std::string name;
    Shape shape;
  };
  // The device's copies of these tensors lie side by side, in this order without a gap, in one piece of memory, so that
  // products by them can be one. tensor() hands them out as ever. Nothing happens on the CPU, where tensors stay where
  // they are, nor where dtypes differ, one has its copy already, or one would not begin as an allocation does. Errors
  // as tensor().
  void place_together(std::span<const Part> parts);

  // For errors: the model's directory, and of a tensor the file that holds it, or the directory where none does.
  const std::string& origin() const;
  const std::string& origin_of(std::string_view name) const;

  bool is_random() const;
  bool has(std::string_view name) const;
  std::vector<std::string> names() const;  // sorted
  // Of all tensors in the files, and of random weights those made so far. What quantize() made counts in its place.
  int64_t stored_bytes() const;
  int64_t num_elements() const;  // of all tensors, stored or made up

  // Formats of the matrices that weight() gave as blocks, each once.
  std::vector<BlockFormat> packed_formats() const;

  // The dtype of the first float tensor by name in the first file, as transformers' "auto" reads it. Absent where that
  // file has none, and for random weights. float64 and 8-bit floats are none that headrace computes with.
  std::optional<DType> float_dtype() const;

  // The tensor as its file has it, which lives as long as the checkpoint. Error kModelFile when there is none.
  const StoredTensor& stored(std::string_view name) const;

  // The shape that is stored. Error kModelFile when there is no such tensor; kInvalidArgument on random weights.
  Shape shape_of(std::string_view name) const;

  // The tensor where place_on() said (else on the host), checked to have `expected` as its shape; counts as used.
  // `random` spreads a made-up one. Data that are not aligned to their element are copied once. Error kModelFile:
  // missing, or another shape, naming file, tensor and both shapes; kUnsupported: a dtype that headrace does not
  // compute with.
  TensorView tensor(std::string_view asked, const Shape& expected, const RandomValues& random = {});

  // Returns the matrix as layers multiply with it: quantised rows, and those that quantize() asks for, are packed for
  // the CPU's kernels once each, in memory of the checkpoint, unless an adapter changes them; everything else is
  // tensor(). Errors as tensor(), and kModelFile: a block whose scale is no number, a value that blocks cannot hold.
  WeightView weight(std::string_view asked, const Shape& expected, const RandomValues& random = {});

  // Returns the tensor in host memory, for values that a constructor reads or reorders.
  TensorView host_tensor(std::string_view asked, const Shape& expected, const RandomValues& random = {});

  // Error kModelFile unless every stored tensor was used, begins with one of `skipped_prefixes` or is a rotary
  // frequency table (*.rotary_emb.inv_freq). Names the first unused tensor and its file, and counts the rest. What was
  // skipped is logged.
  void require_all_used(std::span<const std::string_view> skipped_prefixes = kOtherParts) const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
