// Divides one memory budget between pages of K and V and recurrent states.
#pragma once
#include <cstdint>
#include <string>

namespace headrace {

// Tokens of a chat, as assumed for cached text; those of the context if it is shorter.
inline constexpr int32_t kChatLen = 4096;
// Chats that the default budget holds at least, if text is cached.
inline constexpr int32_t kDefaultChats = 8;

struct CacheNeeds {
  int64_t page_bytes = 0;   // K and V of one page in all layers
  int64_t state_bytes = 0;  // recurrent states of one request in all layers; 0: a model without them
  int32_t page_size = 64;   // tokens
  int32_t max_requests = 1;
  int32_t max_context_len = 1;  // tokens
  enum class CachesText : uint8_t { kNo, kYes } caches_text = CachesText::kYes;
};

struct MemoryPlan {
  int32_t num_pages = 0, num_states = 0;  // usable; each pool has one more, for padding
  int64_t bytes = 0;                      // of both pools, at most the budget
  std::string reasons;                    // one line for the log
};

// Plans pools of at most `budget` bytes. One whole context and a working state per running request always fit. Without
// recurrent states all memory is pages. With them each chat that the pages hold has a cached state, and a fifth more
// for branches, so neither runs out long before the other. If the context alone needs more pages than that, states get
// what is left. Error kOutOfMemory if the budget is below least_memory().
MemoryPlan plan_memory(int64_t budget, const CacheNeeds& needs);

// Returns the bytes of one whole context and a working state per running request.
int64_t least_memory(const CacheNeeds& needs);
// Returns a budget for a chat of each running request, and if text is cached for kDefaultChats or more, but at most
// half of `available` bytes, and at least least_memory().
int64_t default_memory(const CacheNeeds& needs, int64_t available);

}  // namespace headrace
