// Source of the current step's metadata for Attention layers that are not given it.
#pragma once
#include <functional>
#include <utility>

#include "headrace/batch/attn_metadata.h"
#include "headrace/core/error.h"

namespace headrace {

// One per attention backend, and so per engine (in Diffulex a process-wide global). A backend installs the fetch
// function with each batch that it plans. Attention reads through it where its caller passes no metadata; backends pass
// it. Not thread-safe: used by the engine's thread.
class AttnMetadataSource {
 public:
  using FetchFn = std::function<const AttnMetadata&()>;

  void set_fetch_fn_for_attn_metadata(FetchFn fetch) { fetch_ = std::move(fetch); }
  // Returns the metadata, valid until the step is over. Error kInvalidArgument if no fetch function is installed, or as
  // check_warm_up.
  const AttnMetadata& fetch_attn_metadata() const {
    HR_REQUIRE(fetch_ != nullptr, ErrorCode::kInvalidArgument, "attention metadata: no fetch function is installed");
    const AttnMetadata& metadata = fetch_();
    check_warm_up(metadata);
    return metadata;
  }
  // Error kInvalidArgument if the step would store K, V or states during a warm-up.
  void check_warm_up(const AttnMetadata& metadata) const {
    HR_REQUIRE(
        !warming_up_ || metadata.keeps_nothing(), ErrorCode::kInvalidArgument,
        "attention metadata: a step of a warm-up keeps keys, values or states; expected kDoNotStore and kNoState "
        "in all of its rows");
  }

  // During a warm-up nothing is stored, published or counted, and prompts longer than the context are accepted. Batches
  // carry write slots that store nothing, so that warm-up launches exactly the kernels of later steps. A batch that
  // would store something is refused.
  void set_warming_up() { warming_up_ = true; }
  bool is_warming_up() const { return warming_up_; }
  void reset_warming_up() { warming_up_ = false; }

 private:
  FetchFn fetch_;
  bool warming_up_ = false;
};

// Enables warm-up mode during its lifetime.
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
