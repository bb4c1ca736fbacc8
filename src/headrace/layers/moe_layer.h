// Mixture of experts: the router's k per token, and optionally a shared expert.
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
    kSigmoid,  // of a projection of the token, "shared_expert_gate"
    kNone,     // the shared expert counts in full
  } shared_gate = SharedGate::kSigmoid;
  Activation activation = Activation::kSilu;  // of the experts
  ExpertRouterConfig router;
};

// Accepts both layouts of experts: "experts.N.gate_proj.weight" and so on, and stacked "experts.gate_up_proj"
// [experts, 2 * intermediate, hidden] with "experts.down_proj". Only tokens that chose an expert run through it.
// Source: Qwen3-MoE; ties between experts go to the lower index. Callable from any thread.
class MoELayer {
 public:
  MoELayer(const WeightScope& scope, const MoEConfig& config);

  struct Rows {
    TensorView x;          // [tokens, hidden]
    TensorView routed_by;  // [tokens, hidden]: what the router reads; null: x (Gemma has others)
    TensorView num_rows;  // int32 [1] on the device, or null: tokens behind so many are padding, which no routed expert
                          // runs for
  };
  // Writes y [tokens, hidden] of the context's dtype. Under kStrict a token's result does not depend on the
  // other tokens.
  void forward(const LayerContext& context, const Rows& rows, const TensorView& y) const { run(context, rows, {}, y); }
  void forward(const LayerContext& context, const TensorView& x, const TensorView& y) const {
    forward(context, Rows{.x = x, .routed_by = {}, .num_rows = {}}, y);
  }
  // y += that of the rows
  void add_to(const LayerContext& context, const Rows& rows, const TensorView& y) const { run(context, rows, y, y); }

  // Of the weights of the experts that the router chooses from.
  int64_t expert_bytes() const;

 private:
  using Choice = ExpertRouter::Choice;
  // y = residual, where there is one, + the experts of the rows.
  void run(const LayerContext& context, const Rows& rows, const TensorView& residual, const TensorView& y) const;
  // Whether the shared expert is run by a device as one more that every token chooses.
  bool shared_is_chosen(const Rows& rows) const;
  // float32 [tokens, hidden], without the shared expert.
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
  // Of the experts' weights, as ExpertMLPArgs has them, the shared one's behind the others where it is of their kind;
  // none on a CPU.
  Tensor addresses_;
};

}  // namespace headrace
