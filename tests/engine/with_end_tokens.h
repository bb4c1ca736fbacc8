// A network with end tokens of a test's choice.
#pragma once
#include <utility>
#include <vector>

#include "headrace/models/model.h"

namespace headrace::testing_support {

class WithEndTokens final : public Model {
 public:
  // `model` is not owned.
  WithEndTokens(const Model& model, std::vector<int32_t> eos_ids) : model_(model), info_(model.info()) {
    info_.eos_ids = std::move(eos_ids);
  }
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override { return model_.forward(batch); }

 private:
  const Model& model_;
  ModelInfo info_;
};

}  // namespace headrace::testing_support
