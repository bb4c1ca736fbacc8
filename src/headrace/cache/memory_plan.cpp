#include "headrace/cache/memory_plan.h"

#include <algorithm>
#include <limits>

#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"

namespace headrace {
namespace {

int64_t pages_for(int64_t tokens, int32_t page_size) { return (tokens + page_size - 1) / page_size; }

int64_t context_pages(const CacheNeeds& n) { return pages_for(n.max_context_len, n.page_size); }
int32_t chat_len(const CacheNeeds& n) { return std::min(kChatLen, n.max_context_len); }
int64_t chat_pages(const CacheNeeds& n) { return pages_for(chat_len(n), n.page_size); }

bool caches_states(const CacheNeeds& n) { return n.state_bytes > 0 && n.caches_text == CacheNeeds::CachesText::kYes; }

// Bytes of pools with so many usable pages and states.
int64_t bytes_of(const CacheNeeds& n, int64_t pages, int64_t states) {
  return (pages + 1) * n.page_bytes + (states + 1) * n.state_bytes;
}

int64_t working_states(const CacheNeeds& n) { return n.state_bytes > 0 ? n.max_requests : 0; }

// Cached states such that each chat of the pages has one and a fifth more. `bytes`: for pages and cached states.
int64_t cached_states(int64_t bytes, const CacheNeeds& n) {
  if (!caches_states(n)) return 0;
  const auto of_states = static_cast<double>(6 * n.state_bytes);
  const double share = of_states / (of_states + static_cast<double>(5 * chat_pages(n) * n.page_bytes));
  const auto balanced = static_cast<int64_t>(share * static_cast<double>(bytes)) / n.state_bytes;
  return std::min(balanced, (bytes - context_pages(n) * n.page_bytes) / n.state_bytes);
}

// Slot numbers are counted in 32 bits.
int64_t most_pages(const CacheNeeds& n) { return std::numeric_limits<int32_t>::max() / n.page_size - 1; }

int64_t pages_in(int64_t bytes, int64_t states, const CacheNeeds& n) {
  if (n.page_bytes > 0) return std::min(bytes / n.page_bytes, most_pages(n));
  return std::max(context_pages(n), std::min(states * chat_pages(n), most_pages(n)));
}

std::string reasons_of(const MemoryPlan& plan, const CacheNeeds& n) {
  const int64_t tokens = int64_t{plan.num_pages} * n.page_size;
  std::string text = str(human_bytes(plan.bytes), " = ", tokens, " tokens of K and V (",
                         human_bytes(n.page_bytes / n.page_size), " a token)");
  if (n.state_bytes > 0) {
    text += str(" and ", plan.num_states, plan.num_states == 1 ? " recurrent state" : " recurrent states", " of ",
                human_bytes(n.state_bytes));
  }
  const std::string chats = str("chat of ", chat_len(n), " tokens");
  const bool context_alone = (plan.num_pages - context_pages(n)) * n.page_bytes <= n.state_bytes;
  if (context_alone) return text + str(", for a context of ", n.max_context_len, " tokens");
  if (caches_states(n)) return text + ", one for each " + chats + " and a fifth more";
  return text + str(", for a context of ", n.max_context_len, " tokens and cached text");
}

}  // namespace

int64_t least_memory(const CacheNeeds& n) { return bytes_of(n, context_pages(n), working_states(n)); }

int64_t default_memory(const CacheNeeds& n, int64_t available) {
  const int64_t least = least_memory(n), running = n.max_requests;
  const bool caches = n.caches_text == CacheNeeds::CachesText::kYes;
  const int64_t chats = caches ? std::max<int64_t>(kDefaultChats, running) : running;
  const int64_t states = caches_states(n) ? (chats * 6 + 4) / 5 : 0;
  const int64_t pages = std::max(context_pages(n), chats * chat_pages(n));
  return std::max(least, std::min(bytes_of(n, pages, working_states(n) + states), available / 2));
}

MemoryPlan plan_memory(int64_t budget, const CacheNeeds& n) {
  const int64_t least = least_memory(n);
  HR_REQUIRE(budget >= least, ErrorCode::kOutOfMemory, "kv_cache_memory_bytes is ", budget, " bytes, expected ", least,
             " or more: a context of ", n.max_context_len, " tokens",
             n.state_bytes == 0    ? std::string()
             : n.max_requests == 1 ? std::string(" and a recurrent state")
                                   : str(" and a recurrent state for each of ", n.max_requests, " running requests"));
  const int64_t shared = budget - bytes_of(n, 0, working_states(n));  // by pages and cached states
  const int64_t cached = cached_states(shared, n);
  MemoryPlan plan{.num_pages = static_cast<int32_t>(pages_in(shared - cached * n.state_bytes, cached, n)),
                  .num_states = static_cast<int32_t>(working_states(n) + cached)};
  plan.bytes = bytes_of(n, plan.num_pages, plan.num_states);
  plan.reasons = reasons_of(plan, n);
  return plan;
}

}  // namespace headrace
