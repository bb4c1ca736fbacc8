// Where a strategies' layer finds the metadata of the current step.
#pragma once
#include <functional>
#include <utility>

#include "headrace/batch/attn_metadata.h"
#include "headrace/core/error.h"

namespace headrace {

// One per attention backend, and so one per engine (Diffulex's was a process-wide global): the runner installs the
// fetch function with each batch that it plans, and Attention reads through it. Not thread-safe: it belongs to the
// engine's thread.
class AttnMetadataSource {
 public:
  using FetchFn = std::function<const AttnMetadata&()>;

  void set_fetch_fn_for_attn_metadata(FetchFn fetch) { fetch_ = std::move(fetch); }
  // Error kInvalidArgument when no fetch function is installed, or when the step would keep something while the source
  // is warming up. The value lives until the step is over.
  const AttnMetadata& fetch_attn_metadata() const {
    HR_REQUIRE(fetch_ != nullptr, ErrorCode::kInvalidArgument, "attention metadata: no fetch function is installed");
    const AttnMetadata& metadata = fetch_();
    HR_REQUIRE(
        !warming_up_ || metadata.keeps_nothing(), ErrorCode::kInvalidArgument,
        "attention metadata: a step of a warm-up keeps keys, values or states; expected kDoNotStore and kNoState "
        "in all of its rows");
    return metadata;
  }

  // While warming up, nothing is stored, published or counted, and over-long lengths are accepted. Batches bring slots
  // in which nothing is stored, so that the very kernels run that run later; others are refused.
  void set_warming_up() { warming_up_ = true; }
  bool is_warming_up() const { return warming_up_; }
  void reset_warming_up() { warming_up_ = false; }

 private:
  FetchFn fetch_;
  bool warming_up_ = false;
};

// Warm-up for as long as this lives.
class WarmupScope {
 public:
  explicit WarmupScope(AttnMetadataSource& source) : source_(source) { source_.set_warming_up(); }
  WarmupScope(const WarmupScope&) = delete;
  WarmupScope& operator=(const WarmupScope&) = delete;
  ~WarmupScope() { source_.reset_warming_up(); }

 private:
  AttnMetadataSource& source_;
};

}  // namespace headrace
