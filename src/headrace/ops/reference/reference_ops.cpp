#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {

const OpSet& ops() {
#define HR_ENTRY(op, Args) .op = op,  // NOLINT(bugprone-macro-parentheses): a member
#define HR_NONE(op, Args)
  static constexpr OpSet kOps = {.name = "reference", HR_OPS(HR_ENTRY, HR_NONE, HR_NONE)};
#undef HR_ENTRY
#undef HR_NONE
  return kOps;
}

}  // namespace headrace::reference
