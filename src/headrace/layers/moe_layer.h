// Mixture of experts: the router's top k per token, and optionally a shared expert.
#pragma once
#include <optional>
#include <vector>

#include "headrace/layers/expert_router.h"
#include "headrace/layers/gated_mlp.h"

namespace headrace {

struct MoEConfig {
  int64_t intermediate = 0;
  int64_t shared_intermediate = 0;  // 0: no shared expert
  enum class SharedGate : uint8_t {
    kSigmoid,  // gated by the sigmoid of the token's projection, "shared_expert_gate"
    kNone,     // the shared expert has weight 1
  } shared_gate = SharedGate::kSigmoid;
  Activation activation = Activation::kSilu;  // activation of the experts
  ExpertRouterConfig router;
};

// Accepts both weight layouts: "experts.N.gate_proj.weight" and so on, and stacked "experts.gate_up_proj" [experts, 2 *
// intermediate, hidden] with "experts.down_proj". An expert runs only the tokens that chose it. Source: Qwen3-MoE; ties
// between experts go to the lower index. Callable from any thread.
class MoELayer {
 public:
  MoELayer(const WeightScope& scope, const MoEConfig& config);

  struct Rows {
    TensorView x;          // [tokens, hidden]
    TensorView routed_by;  // [tokens, hidden]: input of the router; null: x (Gemma's differs)
    // int32 [1] on the device, or null: tokens from this index on are padding and run no routed expert
    TensorView num_rows;
  };
  // Writes y [tokens, hidden] of the context's dtype. In batch-invariant mode a token's result does not depend on other
  // tokens.
  void forward(const LayerContext& context, const Rows& rows, const TensorView& y) const { run(context, rows, {}, y); }
  void forward(const LayerContext& context, const TensorView& x, const TensorView& y) const {
    forward(context, Rows{.x = x, .routed_by = {}, .num_rows = {}}, y);
  }
  // As forward, but adds to y.
  void add_to(const LayerContext& context, const Rows& rows, const TensorView& y) const { run(context, rows, y, y); }

  // Returns the bytes of the routed experts' weights.
  int64_t expert_bytes() const;

 private:
  using Choice = ExpertRouter::Choice;
  // y = residual (if not null) + the experts' output.
  void run(const LayerContext& context, const Rows& rows, const TensorView& residual, const TensorView& y) const;
  // Returns true if a device runs the shared expert as one more chosen expert.
  bool shared_is_chosen(const Rows& rows) const;
  // Returns float32 [tokens, hidden], without the shared expert.
  Tensor routed(const LayerContext& context, const Rows& rows) const;
  void run_on_device(const LayerContext& context, const Rows& rows, const TensorView& residual,
                     const TensorView& y) const;
  void add_shared(const LayerContext& context, const TensorView& x, const TensorView& sum) const;
  void run_expert(const LayerContext& context, int64_t expert, const TensorView& x, const std::vector<Choice>& choices,
                  const TensorView& results) const;

  MoEConfig config_;
  ExpertRouter router_;
  std::vector<GatedMLP> experts_;
  std::optional<GatedMLP> shared_;
  Linear shared_gate_;
  // Device addresses of the experts' weights (ExpertMLPArgs), the shared expert last if it has the same shape and
  // dtype; null on a CPU.
  Tensor addresses_;
};

}  // namespace headrace
