// A low-rank adapter in PEFT's format: for some weights W [out, in] of a checkpoint, factors A [rank, in] and
// B [out, rank] with W' = W + scale B A, and copies of whole tensors that take the place of the checkpoint's.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/core/weight_view.h"
#include "headrace/weights/lora_config.h"
#include "headrace/weights/safetensors_file.h"
#include "headrace/weights/stored_tensor.h"
#include "headrace/weights/text_layout.h"

namespace headrace {

// Owns its mapping. Threads may share it once it is fitted to a checkpoint.
class LoraAdapter {
 public:
  // Reads adapter_config.json and adapter_model.safetensors. Error kModelFile: a file or a field is missing, a factor
  // without its partner, ranks that disagree with the config, a module to save that is not there; kUnsupported, by
  // name: what LoraConfig refuses, tensors of another kind, pickle files.
  static LoraAdapter open(const std::filesystem::path& directory, SigbusGuard* guard = nullptr);

  // The names of the tensors that it changes ("model.layers.0.self_attn.q_proj.weight").
  std::vector<std::string> weights() const;
  bool adapts(std::string_view weight) const { return changes_.contains(weight); }

  // From here on names that were under `own` are those of a checkpoint under `stored`.
  void move(const TextLayout& own, const TextLayout& stored);
  void drop(std::string_view weight) { changes_.erase(changes_.find(weight)); }
  // Forgets the copy of `weight` when it equals the checkpoint's tensor; and the weight, when nothing else changes it.
  void forget_equal_copy(std::string_view weight, const StoredTensor& stored, int threads);

  // Error kModelFile unless `weight` of this shape can take its change: both shapes are named.
  void require_fits(std::string_view weight, const Shape& shape) const;
  // Error kModelFile for a weight that the config says is adapted, and that has no factors. Experts may lie together in
  // the network that it was trained on, where none of them is a linear layer: then the adapter has factors of none.
  void require_adapts_what_it_names(std::string_view weight, const Shape& shape) const;
  // Returns the change as factors of their own; absent where it is no sum of W and a product: DoRA, a copy, an
  // embedding's rows.
  std::optional<LowRankChange> change_beside(std::string_view weight) const;
  // W' in the dtype of `base`, from sums in double; DoRA's rows have their magnitudes as lengths (Liu et al. 2024).
  // `weight` is one of weights(), and fits. Error kModelFile: a tensor of the adapter holds NaN or an infinity, or
  // finite ones make one.
  Tensor merged(std::string_view weight, const TensorView& base, int threads) const;

  const std::string& name() const { return file_.name(); }
  int64_t max_rank() const;

 private:
  // Change of one weight. Entries are file_'s, not owned. Both factors are set, or neither.
  struct Change {
    const SafetensorsEntry *a = nullptr, *b = nullptr, *magnitude = nullptr, *copy = nullptr;
    bool is_embedding = false;  // a [rank, rows of the table] and b [columns, rank], as PEFT stores them
    int64_t rank = 0;
    double scale = 0;
  };
  // Factors as a linear layer's: a [rank, in] and b [out, rank]. Empty without factors.
  struct Factors {
    std::vector<double> a, b;
  };
  LoraAdapter(SafetensorsFile file, LoraConfig config);
  void add(const SafetensorsEntry& entry);
  void check(const std::string& weight, Change& change) const;
  void check_saved_modules() const;
  Factors factors(const Change& change) const;
  std::vector<double> values(const SafetensorsEntry& entry) const;

  SafetensorsFile file_;
  LoraConfig config_;
  std::map<std::string, Change, std::less<>> changes_;  // by weight
  bool adapts_experts_ = false;
  TextLayout own_ = kTextLayouts[0], stored_ = kTextLayouts[0];
};

}  // namespace headrace
