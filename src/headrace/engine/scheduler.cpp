#include "headrace/engine/scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace headrace {
namespace {

// The LM head makes a row of logits, as wide as the vocabulary, of each prompt token whose log-probability is wanted.
constexpr int32_t kMostScoredRows = 512;

bool shares(const SchedulerConfig& c) { return c.keep_text == SchedulerConfig::KeepText::kYes; }

// State slots beyond one per running request.
int32_t num_cached_states(const SchedulerConfig& c) {
  return shares(c) ? std::max(0, c.num_states - c.max_requests) : 0;
}

PageTableConfig pages_config(const SchedulerConfig& c, const DecodingStrategy& strategy) {
  // Without a state, a recurrent model cannot reuse cached pages.
  const bool reuses = shares(c) && (c.num_states == 0 || num_cached_states(c) > 0);
  return {.num_pages = c.num_pages,
          .page_size = c.page_size,
          .multiple = reuses ? strategy.traits().text_block : std::nullopt,
          .needs_states = c.num_states > 0};
}

int32_t rows_left(const Sequence& s) { return s.num_tokens() - s.num_cached; }

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, const DecodingStrategy& strategy)
    : config_(config),
      strategy_(strategy),
      table_(config.max_requests, config.max_context_len, config.page_size, config.num_pages),
      pages_(pages_config(config, strategy), table_),
      states_(
          {.num_states = config.num_states, .num_cached = strategy.traits().text_block ? num_cached_states(config) : 0},
          pages_),
      by_row_(static_cast<size_t>(config.max_requests) + 1),
      most_rows_(config.max_tokens_per_step) {}

void Scheduler::check_length(const Sequence& s) const {
  HR_REQUIRE(s.prompt_len > 0, ErrorCode::kInvalidArgument, "request ", s.id, ": the prompt is empty");
  HR_REQUIRE(s.prompt_len < config_.max_context_len, ErrorCode::kInvalidArgument, "request ", s.id, ": the prompt has ",
             s.prompt_len, " tokens, ", config_.context_name, " holds ", config_.max_context_len,
             " with at least one new token");
}

void Scheduler::check_size(const Sequence& s) const {
  const int32_t most = (config_.max_context_len + config_.page_size - 1) / config_.page_size;
  const int32_t needed = pages_.pages_for(most_stored(strategy_.traits(), s));
  HR_REQUIRE(needed <= most, ErrorCode::kInvalidArgument, "request ", s.id, ": it needs ", needed, " pages of ",
             config_.page_size, " tokens, a context of ", config_.max_context_len, " has ", most);
  HR_REQUIRE(needed <= config_.num_pages, ErrorCode::kInvalidArgument, "request ", s.id, ": it needs ", needed,
             " pages of ", config_.page_size, " tokens, the pool has ", config_.num_pages);
  const int32_t rows = rows_needed(strategy_.traits(), s);
  HR_REQUIRE(rows <= config_.max_tokens_per_step, ErrorCode::kInvalidArgument, "request ", s.id,
             ": a step of strategy '", strategy_.name(), "' has up to ", rows, " rows, the engine runs at most ",
             config_.max_tokens_per_step);
}

void Scheduler::add(Sequence& s) {
  check_length(s);
  check_size(s);
  s.prefill_len = s.prompt_len;
  waiting_.push_back(&s);
}

// The masks of a block may reach behind the context, where nothing is stored.
int32_t Scheduler::tokens_to_hold(const Sequence& s) const { return std::min(s.num_tokens(), config_.max_context_len); }

bool Scheduler::admit(Sequence& s) {
  if (table_.available_size() == 0) return false;
  if (states_.any() && !states_.any_free()) return false;
  // Cheap check before texts are compared.
  const int32_t all = pages_.pages_for(tokens_to_hold(s));
  // A preempted one would soon lose its pages again if the others needed theirs.
  const auto reserve = static_cast<int32_t>(s.num_preempted > 0 ? running_.size() : 0);
  if (all + reserve - pages_.most_shared(s) > pages_.num_available()) return false;
  const PrefixMatch match = pages_.match(s);
  const auto stored = static_cast<int32_t>(match.pages.size()), shared = states_.any() ? match.with_state : stored;
  const int32_t own = match.num_pending > 0 ? 0 : all - shared;
  if (own + reserve >
      pages_.num_available() - pages_.num_cached(std::span(match.pages).first(static_cast<size_t>(shared))))
    return false;
  s.table_row = *table_.alloc();
  by_row_[static_cast<size_t>(s.table_row)] = &s;
  if (states_.any()) {
    states_.give(s);
    table_.set_state_slot(s.table_row, s.state_slot);
  }
  running_.push_back(&s);
  begin(s);
  return true;
}

bool Scheduler::catch_up(Sequence& s) {
  const PrefixMatch match = pages_.match(s);
  if (!states_.any()) {
    pages_.share(s, match, static_cast<int32_t>(match.pages.size()));
    if (match.num_pending > 0) return false;
    s.miss = pages_.why_miss(s, s.num_tree_pages);
    return true;
  }
  const int32_t computed = (s.num_tree_pages + static_cast<int32_t>(match.pages.size())) * config_.page_size;
  if (match.num_pending > 0) {
    Sequence& leader = *by_row_[static_cast<size_t>(match.owner)];
    if (states_.want(leader, computed + match.num_pending * config_.page_size)) return false;
  }
  pages_.share(s, match, match.with_state);
  states_.start(s, computed);
  s.miss = pages_.why_miss(s, computed / config_.page_size);
  return true;
}

bool Scheduler::begin(Sequence& s) {
  if (s.begun) return true;
  const bool has_state = states_.any() && !s.pages.empty();  // it only waits for pages
  if (!has_state && !catch_up(s)) return false;
  if (!make_room(s, tokens_to_hold(s))) return false;
  pages_.announce(s);
  s.begun = true;
  return true;
}

bool Scheduler::any_held_back() const {
  return std::ranges::any_of(running_, [](const Sequence* s) { return !s->begun; });
}

Sequence* Scheduler::youngest_behind(const Sequence& s) {
  for (auto one = running_.rbegin(); one != running_.rend() && *one != &s; ++one) {
    if (strategy_.may_preempt(**one)) return *one;
  }
  return nullptr;
}

bool Scheduler::make_room(Sequence& s, int32_t num_tokens) {
  while (!pages_.grow(s, pages_.pages_for(num_tokens))) {
    Sequence* const victim = preempts_ == Preempts::kNever ? nullptr : youngest_behind(s);
    if (victim == nullptr) {
      lacks_room_ = true;
      return false;
    }
    preempt(*victim);
  }
  return true;
}

// A state is left at a chunk's end if it is the end of a page.
int32_t Scheduler::chunk_of(const Sequence& s, int32_t rows) const {
  const int32_t end = s.num_cached + rows;
  if (!states_.caches_any() || end >= s.prefill_len) return rows;
  return std::max(end / config_.page_size * config_.page_size - s.num_cached, std::min(rows, config_.page_size));
}

bool Scheduler::plan_one(Sequence& s, int32_t most_rows) {
  if (planned_.empty()) {
    most_rows = std::max(most_rows, std::min(rows_needed(strategy_.traits(), s), config_.max_tokens_per_step));
  }
  most_rows = std::min(most_rows, s.most_rows);
  if (s.params.prompt_logprobs && s.num_cached < s.prompt_len - 1) most_rows = std::min(most_rows, scored_budget_);
  if (!s.begun || most_rows <= 0) return false;  // it waits, or nothing is left for it
  in_plan_ = {s.id};
  StepPlan plan = strategy_.plan(s, chunk_of(s, most_rows));
  if (plan.spans.empty() || !make_room(s, plan.stored_end(s.num_cached))) return false;
  const int32_t rows = plan.num_rows();
  HR_REQUIRE(0 < rows && rows <= most_rows, ErrorCode::kInternal, "request ", s.id, ": strategy '", strategy_.name(),
             "' planned ", rows, " rows, expected 1 to ", most_rows);
  budget_ -= rows;
  scored_budget_ -= plan.scored.size();
  planned_.push_back({.sequence = &s, .plan = std::move(plan)});
  return true;
}

// The first prompt is the oldest. One that cannot be cut gets all if a quarter is too little.
void Scheduler::plan_prompts(std::vector<Sequence*>& prompts) {
  if (prompts.empty()) return;
  Sequence& oldest = *prompts.front();
  prompts.erase(prompts.begin());
  const int64_t shorter = std::accumulate(
      prompts.begin(), prompts.end(), int64_t{0},
      [&](int64_t sum, const Sequence* s) { return sum + (rows_left(*s) < rows_left(oldest) ? rows_left(*s) : 0); });
  const auto share = static_cast<int32_t>(std::max<int64_t>(std::max(budget_ / 4, 1), budget_ - shorter));
  if (!plan_one(oldest, std::min(share, budget_))) plan_one(oldest, budget_);
  std::ranges::stable_sort(prompts, {}, [](const Sequence* s) { return rows_left(*s); });
  for (Sequence* s : prompts) plan_one(*s, budget_);
}

// Plans all before any sequence changes but for its pages: an error then concerns one request only.
void Scheduler::plan(std::span<const int64_t> only) {
  planned_.clear();
  budget_ = most_rows_, scored_budget_ = kMostScoredRows;
  std::vector<Sequence*> prompts;
  for (Sequence* s : std::vector(running_)) {
    if (!s->begun || s->is_complete || (!only.empty() && std::ranges::find(only, s->id) == only.end())) continue;
    if (s->num_cached < s->prefill_len) {
      prompts.push_back(s);
    } else {
      plan_one(*s, budget_);
    }
  }
  plan_prompts(prompts);
  in_plan_.clear();
}

void Scheduler::admit_waiting() {
  while (!waiting_.empty()) {
    in_plan_ = {waiting_.front()->id};
    if (!admit(*waiting_.front())) break;
    waiting_.pop_front();
  }
}

std::vector<ScheduledStep> Scheduler::next(Preempts preempts, std::span<const int64_t> only) {
  preempts_ = preempts, lacks_room_ = false;
  for (Sequence* s : running_) {
    in_plan_ = {s->id};
    pages_.publish(*s);
    if (states_.any()) states_.publish(*s);
  }
  if (any_held_back()) {
    for (Sequence* s : std::vector(running_)) {
      in_plan_ = {s->id};
      if (s->table_row != 0) begin(*s);
    }
  }
  admit_waiting();
  plan(only);
  for (ScheduledStep& step : planned_) {
    in_plan_.push_back(step.sequence->id);
    states_.plan(step);
    table_.set_state_slot(step.sequence->table_row, step.sequence->state_slot);
  }
  in_plan_.clear();
  return std::exchange(planned_, {});
}

void Scheduler::drop(Sequence& s, PageTable::Keeps keeps) {
  std::erase(running_, &s);
  if (keeps == PageTable::Keeps::kYes) pages_.publish(s);
  states_.take_back(s, keeps);
  pages_.take_back(s, keeps);
  by_row_[static_cast<size_t>(s.table_row)] = nullptr;
  table_.free(std::exchange(s.table_row, 0));
  s.begun = false;
}

void Scheduler::release(Sequence& s, PageTable::Keeps keeps) {
  s.table_row != 0 ? drop(s, keeps) : static_cast<void>(std::erase(waiting_, &s));
}

bool Scheduler::preempt(Sequence& s) {
  if (s.table_row == 0 || !strategy_.may_preempt(s)) return false;
  const auto planned = std::ranges::find(planned_, &s, &ScheduledStep::sequence);
  if (planned != planned_.end()) {
    budget_ += planned->plan.num_rows();
    planned_.erase(planned);
  }
  s.prefill_len = std::max(s.prefill_len, s.num_cached);
  drop(s, PageTable::Keeps::kYes);
  strategy_.restart(s);
  waiting_.push_front(&s);
  ++s.num_preempted;
  ++num_preempted_;
  return true;
}

void Scheduler::audit() const {
  pages_.audit(running_);
  states_.audit(running_);
}

}  // namespace headrace
