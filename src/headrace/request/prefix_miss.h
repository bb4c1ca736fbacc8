// The answer to "why did this request compute text again?"
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// A prefix miss: the place where a request's cached text ended, and the reason.
struct PrefixMiss {
  enum class Why : uint8_t {
    kNone,          // all that may be shared was there
    kNotShared,     // the engine, its strategy or its pool of states shares no text
    kNewText,       // no cached text goes on there
    kOtherText,     // cached text goes on with other tokens there
    kPageEvicted,   // the same text was cached and evicted
    kStateMissing,  // K and V go on, but no recurrent state was left there
    kStateEvicted,  // K and V go on, but the recurrent state was evicted
  } why = Why::kNone;
  int32_t position = 0;      // tokens that were taken; the first one that was not
  int32_t num_matching = 0;  // tokens with cached K and V, at least `position`
  int32_t num_computed = 0;  // tokens that the request computes
  // kOtherText: the request's own tokens behind num_matching, and those that a cached text of the same salt has there;
  // a page at most. The second may be empty: the text has left the cache.
  std::vector<int32_t> own_text, cached_text;
};

// Returns one sentence: "256 of 300 tokens were cached: a recurrent state behind token 288 was evicted".
std::string to_string(const PrefixMiss& miss);

}  // namespace headrace
