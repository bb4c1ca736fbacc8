#include "headrace/sampling/logit_changes.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <utility>

#include "headrace/ops/mask_tokens.h"

namespace headrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool is_counted(const SampleSpot& spot) {
  return spot.output_counts != nullptr && (spot.params->presence_penalty != 0 || spot.params->frequency_penalty != 0);
}

int64_t count_of(const SampleSpot& spot) { return is_counted(spot) ? std::ssize(spot.output_counts->ids()) : 0; }

bool is_masked(const SampleSpot& spot) { return !spot.allowed_bits.empty(); }

bool may_change(const SampleSpot& spot) {
  return spot.temperature != 1 || spot.params->repetition_penalty != 1 || !spot.params->logit_bias.empty() ||
         !spot.banned_ids.empty() || !spot.early_ids.empty() || spot.discouraged_id || is_counted(spot) ||
         is_masked(spot);
}

// As std::find, by blocks that compilers compare at once: texts have thousands of tokens.
const int32_t* find_in(std::span<const int32_t> places, int32_t place) {
  constexpr size_t kBlock = 16;
  size_t at = 0;
  for (; at + kBlock <= places.size(); at += kBlock) {
    int32_t found = 0;
    for (size_t i = 0; i < kBlock; ++i) found |= places[at + i] == place ? 1 : 0;
    if (found != 0) break;
  }
  return std::find(places.data() + at, places.data() + places.size(), place);
}

}  // namespace

LogitChanges::~LogitChanges() {
  try {
    wait_until_read();
  } catch (const Error&) {  // a failed device reads nothing more
  }
  if (words_ != nullptr) runtime_.release_shared(words_, static_cast<size_t>(capacity_) * sizeof(int32_t));
}

void LogitChanges::wait_until_read() {
  if (read_) read_->wait();
}

void LogitChanges::send(void* to) {
  if (!read_) read_ = runtime_.make_event();
  runtime_.copy_on_device(to, words_, words().size_bytes());
  read_->set();
}

// Lists grow with the texts, by some words a step.
void LogitChanges::make_room(int64_t words) {
  num_words_ = words;
  if (words <= capacity_) return;
  const int64_t capacity = std::max<int64_t>({words, 2 * capacity_, 256});
  auto* const more = static_cast<int32_t*>(runtime_.allocate_shared(static_cast<size_t>(capacity) * sizeof(int32_t)));
  if (words_ != nullptr) runtime_.release_shared(words_, static_cast<size_t>(capacity_) * sizeof(int32_t));
  words_ = more, capacity_ = capacity;
}

int64_t LogitChanges::rows_of_part() const { return std::max<int64_t>(1, most_places_ / width_); }

int32_t LogitChanges::first_place_of(int64_t row) const { return static_cast<int32_t>(row % rows_of_part() * width_); }

void LogitChanges::list(std::span<const SampleSpot> spots, int64_t width, int32_t vocab) {
  width_ = width, vocab_ = vocab;
  wait_until_read();
  if (std::ranges::none_of(spots, may_change)) return clear(spots.size());
  list_biases(spots);
  list_penalties(spots);
  lay_out(spots);
  fill_biases();
  fill_counts(spots);
  fill_masks(spots);
  find_rows(spots);
}

void LogitChanges::clear(size_t rows) {
  for (Additions& one : additions_) one.begins.assign(rows + 1, 0), one.places = one.biases = {};
  biases_.clear(), penalized_.clear();
  temperatures_ = masked_rows_ = masks_ = {};
  num_words_ = 0;
  changed_ = {};
}

void LogitChanges::find_rows(std::span<const SampleSpot> spots) {
  const auto adds = [](const Additions& list, size_t row) { return list.begins[row + 1] > list.begins[row]; };
  changed_ = {std::ssize(spots), 0};
  for (size_t row = 0; row < spots.size(); ++row) {
    const SampleSpot& spot = spots[row];
    const bool changes = spot.temperature != 1 || spot.params->repetition_penalty != 1 || is_masked(spot) ||
                         adds(additions_[0], row) || adds(additions_[1], row);
    if (!changes) continue;
    const auto at = static_cast<int64_t>(row);
    changed_ = {std::min(changed_.first, at), at + 1};
  }
}

// A ban wins, as nothing finite changes minus infinity.
void LogitChanges::add(size_t first, int32_t id, float bias) {
  if (id >= vocab_) return;
  const auto own = std::span(biases_).subspan(first);
  const auto same = std::ranges::find(own, id, &LogitBias::id);
  if (same != own.end()) {
    same->bias += bias;
  } else {
    biases_.push_back({id, bias});
  }
}

void LogitChanges::list_biases(std::span<const SampleSpot> spots) {
  biases_.clear();
  additions_[0].begins.assign(1, 0);
  for (const SampleSpot& spot : spots) {
    const size_t first = biases_.size();
    std::ranges::copy_if(spot.params->logit_bias, std::back_inserter(biases_),
                         [this](const LogitBias& one) { return one.id < vocab_; });
    for (const int32_t id : spot.banned_ids) add(first, id, -kInfinity);
    for (const int32_t id : spot.early_ids) add(first, id, -kInfinity);
    if (spot.discouraged_id) add(first, *spot.discouraged_id, -spot.params->decoding.copy_penalty);
    additions_[0].begins.push_back(std::ssize(biases_));
  }
}

void LogitChanges::list_penalties(std::span<const SampleSpot> spots) {
  penalized_.clear();
  for (int64_t row = 0; row < std::ssize(spots); ++row) {
    const SampleSpot& spot = spots[static_cast<size_t>(row)];
    const float penalty = spot.params->repetition_penalty;
    if (penalty == 1) continue;
    PenalizedRows* const last = penalized_.empty() ? nullptr : &penalized_.back();
    if (last != nullptr && last->text == spot.text && last->first + last->count == row) {
      ++last->count;
    } else {
      penalized_.push_back({spot.text, spot.history, spot.num_final, penalty, row, 1});
    }
  }
}

void LogitChanges::lay_out(std::span<const SampleSpot> spots) {
  std::vector<int64_t>& begins = additions_[1].begins;
  begins.assign(1, 0);
  int64_t masks = 0;
  for (const SampleSpot& spot : spots) {
    begins.push_back(begins.back() + count_of(spot));
    masks += is_masked(spot) ? 1 : 0;
  }
  int64_t end = 0;
  const auto place = [&end](int64_t size) { return Words{std::exchange(end, end + size), size}; };
  const bool divides = std::ranges::any_of(spots, [](const SampleSpot& spot) { return spot.temperature != 1; });
  temperatures_ = place(divides ? std::ssize(spots) : 0);
  for (Additions& one : additions_) one.places = place(one.size()), one.biases = place(one.size());
  masked_rows_ = place(masks);
  masks_ = place(masks * MaskTokensArgs::words_of(vocab_));
  make_room(end);
  for (int64_t row = 0; row < temperatures_.size; ++row) {
    words_[row] = std::bit_cast<int32_t>(spots[static_cast<size_t>(row)].temperature);
  }
}

void LogitChanges::fill_biases() {
  const Additions& before = additions_[0];
  int32_t *place = words_ + before.places.first, *bias = words_ + before.biases.first;
  for (int64_t row = 0; row + 1 < std::ssize(before.begins); ++row) {
    const int32_t first = first_place_of(row);
    const auto at = static_cast<size_t>(row);
    for (int64_t i = before.begins[at]; i < before.begins[at + 1]; ++i) {
      const LogitBias& one = biases_[static_cast<size_t>(i)];
      *place++ = first + one.id, *bias++ = std::bit_cast<int32_t>(one.bias);
    }
  }
}

void LogitChanges::fill_counts(std::span<const SampleSpot> spots) {
  const Additions& behind = additions_[1];
  int32_t *place = words_ + behind.places.first, *bias = words_ + behind.biases.first;
  for (int64_t row = 0; row < std::ssize(spots); ++row) {
    const SampleSpot& spot = spots[static_cast<size_t>(row)];
    if (!is_counted(spot)) continue;
    const int32_t first = first_place_of(row);
    const float presence = spot.params->presence_penalty, frequency = spot.params->frequency_penalty;
    place = std::ranges::transform(spot.output_counts->ids(), place, [first](int32_t id) { return first + id; }).out;
    bias = std::ranges::transform(spot.output_counts->counts(), bias, [presence, frequency](int32_t count) {
             return std::bit_cast<int32_t>(-(presence + frequency * static_cast<float>(count)));
           }).out;
  }
}

void LogitChanges::fill_masks(std::span<const SampleSpot> spots) {
  int32_t *masked_row = words_ + masked_rows_.first, *mask = words_ + masks_.first;
  const int64_t size = MaskTokensArgs::words_of(vocab_);
  for (int64_t row = 0; row < std::ssize(spots); ++row) {
    const SampleSpot& spot = spots[static_cast<size_t>(row)];
    if (!is_masked(spot)) continue;
    *masked_row++ = static_cast<int32_t>(row);
    std::ranges::transform(spot.allowed_bits.first(static_cast<size_t>(size)), mask,
                           [](uint32_t bits) { return std::bit_cast<int32_t>(bits); });
    mask += size;
  }
}

std::optional<int64_t> LogitChanges::addition_to(int64_t row, int32_t id) const {
  int64_t earlier = 0;
  for (const Additions& list : additions_) {
    const int64_t begin = list.begins[static_cast<size_t>(row)], end = list.begins[static_cast<size_t>(row) + 1];
    const auto own = words().subspan(static_cast<size_t>(list.places.first + begin), static_cast<size_t>(end - begin));
    const int32_t* const found = find_in(own, first_place_of(row) + id);
    if (found != own.data() + own.size()) return earlier + begin + (found - own.data());
    earlier += list.size();
  }
  return std::nullopt;
}

}  // namespace headrace
