// Work decomposition of one paged_attention call: a pure function of the arguments and the determinism. The number of
// threads only determines how many heads a task takes, which does not affect results. Owns the arrays that params()
// points to.
#pragma once
#include <memory>
#include <vector>

#include "headrace/ops/cpu/paged_attention.h"
#include "headrace/ops/paged_attention.h"

namespace headrace::cpu {

class PagedAttentionPlan {
 public:
  // `args` must be checked. Throws Error kUnsupported for a stride that the kernels do not support.
  PagedAttentionPlan(const PagedAttentionArgs& args, const OpContext& context);
  PagedAttentionPlan(const PagedAttentionPlan&) = delete;  // params_ points into it
  PagedAttentionPlan& operator=(const PagedAttentionPlan&) = delete;

  const PagedAttentionParams& params() const { return params_; }

 private:
  void add_request(long request, const OpContext& context);
  void add_split_request(long request, long keys);
  void add_tasks(AttentionTask task, long splits);
  void finish();

  PagedAttentionParams params_;
  std::vector<KeySpan> spans_;
  std::vector<AttentionTask> tasks_;
  std::vector<AttentionMerge> merges_;
  std::unique_ptr<float[]> partials_;
  long partial_floats_ = 0, next_task_ = 0, tasks_per_request_ = 1;
};

}  // namespace headrace::cpu
