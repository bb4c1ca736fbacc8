#include "headrace/ops/attention_step.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const AttentionStepArgs& a) {
  check(a.attention);
  if (a.rotates()) {
    check(a.norm_rotary);
    HR_REQUIRE(a.norm_rotary.q.data() == a.attention.q.data() && a.norm_rotary.k.data() == a.store.k.data(),
               ErrorCode::kInvalidArgument, "attention_step: queries or keys are rotated that are not attended");
    check_shape("attention_step: rotated q", a.norm_rotary.q, a.attention.q.shape());
    check_shape("attention_step: rotated k", a.norm_rotary.k, a.store.k.shape());
  }
  if (a.stores()) {
    check(a.store);
    check_shape("attention_step: stored slots", a.store.slots, {a.attention.q.dim(0)});
  }
  if (!a.gate) return;
  check_shape("attention_step: gate", a.gate, a.attention.out.shape());
  check_dtype("attention_step: gate", a.gate, a.attention.out.dtype());
}

}  // namespace headrace
