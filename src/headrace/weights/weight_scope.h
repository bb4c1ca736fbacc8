// Names relative to a place in a checkpoint, as modules see them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headrace/weights/checkpoint.h"

namespace headrace {

// A checkpoint and a prefix. Layers take one and ask for "weight"; the model hands out scope("layers.3.mlp").
// Cheap to copy. Refers to the checkpoint, which stays where it is and outlives the scope.
class WeightScope {
 public:
  explicit WeightScope(Checkpoint& checkpoint, std::string prefix = "")  // "" or ends in '.'
      : checkpoint_(&checkpoint), prefix_(std::move(prefix)) {}

  const std::string& prefix() const { return prefix_; }
  const std::string& origin() const { return checkpoint_->origin(); }
  const std::string& origin_of(std::string_view name) const { return checkpoint_->origin_of(full_name(name)); }
  bool is_random() const { return checkpoint_->is_random(); }
  std::string full_name(std::string_view name) const { return prefix_ + std::string(name); }

  WeightScope scope(std::string_view name) const { return WeightScope(*checkpoint_, full_name(name) + "."); }
  bool has(std::string_view name) const { return checkpoint_->has(full_name(name)); }
  bool is_adapted(std::string_view name) const { return checkpoint_->is_adapted(full_name(name)); }
  Shape shape_of(std::string_view name) const { return checkpoint_->shape_of(full_name(name)); }
  // As Checkpoint::tensor, and Error kUnsupported for a dtype that is not one of the three that layers compute with.
  TensorView tensor(std::string_view name, const Shape& expected, const RandomValues& random = {}) const {
    return checked(name, checkpoint_->tensor(full_name(name), expected, random));
  }
  // Calls Checkpoint::weight with the full name. Errors as tensor().
  WeightView weight(std::string_view name, const Shape& expected, const RandomValues& random = {}) const {
    const WeightView weight = checkpoint_->weight(full_name(name), expected, random);
    return weight.packed() ? weight : WeightView(checked(name, weight));
  }
  // Calls Checkpoint::host_tensor with the full name.
  TensorView host_tensor(std::string_view name, const Shape& expected, const RandomValues& random = {}) const {
    return checked(name, checkpoint_->host_tensor(full_name(name), expected, random));
  }
  // As Checkpoint::place_together, of names in this scope.
  void place_together(std::vector<Checkpoint::Part> parts) const {
    for (Checkpoint::Part& part : parts) part.name = full_name(part.name);
    checkpoint_->place_together(parts);
  }
  DeviceRuntime& runtime() const { return checkpoint_->runtime(); }  // where tensor() places

 private:
  TensorView checked(std::string_view name, const TensorView& weight) const;

  Checkpoint* checkpoint_;  // not owned
  std::string prefix_;
};

// Scopes of the text model's tensors. They are chosen once for the whole checkpoint, so that two layouts never mix.
struct TextWeights {
  WeightScope body;  // embed_tokens, layers.N, norm
  WeightScope head;  // lm_head
};

// Looks for `embed_tokens.weight` under "model.", "model.language_model." and "language_model.model."; random weights
// use the first. Error kModelFile when none or more than one of them is there.
TextWeights find_text_weights(Checkpoint& checkpoint);

// Returns the head of a model that ties it to its embedding [vocab, hidden] and may store it as well. Throws kModelFile
// if the stored head differs from the embedding: readers disagree about which one counts. Throws kUnsupported if an
// adapter changes one of them.
void check_tied_head(const TextWeights& weights, const Shape& shape);

}  // namespace headrace
