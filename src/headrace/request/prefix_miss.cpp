#include "headrace/request/prefix_miss.h"

#include "headrace/core/error.h"

namespace headrace {
namespace {

std::string reason_of(const PrefixMiss& miss) {
  using enum PrefixMiss::Why;
  switch (miss.why) {
    case kNone: return "all that may be shared was cached";
    case kNotShared: return "this engine shares no text";
    case kNewText: return str("no cached text goes on behind token ", miss.num_matching);
    case kOtherText: return str("cached text goes on with other tokens behind token ", miss.num_matching);
    case kPageEvicted: return str("the text behind token ", miss.num_matching, " was evicted");
    case kStateMissing:
      return str("no recurrent state was left between tokens ", miss.position, " and ", miss.num_matching);
    case kStateEvicted: return str("the recurrent state behind token ", miss.num_matching, " was evicted");
  }
  return "unknown";
}

}  // namespace

std::string to_string(const PrefixMiss& miss) {
  return str(miss.position, " of ", miss.position + miss.num_computed, " tokens were cached: ", reason_of(miss));
}

}  // namespace headrace
