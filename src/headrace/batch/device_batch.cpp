#include "headrace/batch/device_batch.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "headrace/core/device_runtime.h"

namespace headrace {
namespace {

template <class T>
int64_t bytes_of(int64_t count) {
  return count * static_cast<int64_t>(sizeof(T));
}

// Sections of the staging memory: spans, state slots, ids, positions, rows of logits, their number, write slots,
// snapshots and encoder slots.
std::array<int64_t, 9> section_bytes(const DeviceBatchConfig& c) {
  return {bytes_of<KeySpan>(c.max_requests),      bytes_of<StateSlots>(c.max_requests),
          bytes_of<int32_t>(c.max_tokens),        bytes_of<int32_t>(c.max_tokens),
          bytes_of<int32_t>(c.max_tokens),        bytes_of<int32_t>(1),
          bytes_of<int64_t>(c.max_tokens),        bytes_of<StateSnapshot>(c.max_snapshots),
          bytes_of<int64_t>(c.max_encoder_tokens)};
}

constexpr int64_t aligned(int64_t bytes) {
  constexpr int64_t kAlign = 64;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

DeviceMetadata::NewKeys new_keys_of(const AttnMetadata& attn) {
  const int64_t rows = attn.num_tokens() - attn.padding_rows;
  if (!attn.write_slots || attn.write_slots.numel() < rows) return DeviceMetadata::NewKeys::kSomeNotStored;
  const auto* slots = static_cast<const int64_t*>(attn.write_slots.data());
  const bool all = std::all_of(slots, slots + rows, [](int64_t slot) { return slot != kDoNotStore; });
  return all ? DeviceMetadata::NewKeys::kAllStored : DeviceMetadata::NewKeys::kSomeNotStored;
}

DeviceBatch::DeviceBatch(const DeviceBatchConfig& c, DeviceRuntime& runtime)
    : config_(c), runtime_(runtime), plans_(runtime, c.plan_bytes) {
  metadata_.plans = &plans_;
  const std::array sections = {&spans_,    &state_slots_, &ids_,       &positions_,    &logits_rows_,
                               &num_rows_, &write_slots_, &snapshots_, &encoder_slots_};
  const std::array bytes = section_bytes(c);
  for (size_t i = 0; i < bytes.size(); ++i) *sections[i] = reserve(bytes[i]);
  staging_.resize(static_cast<size_t>(bytes_));
  memory_ = Tensor::zeros(DType::kU8, {bytes_}, runtime);
  table_ = Tensor::zeros(DType::kI32, {c.table_rows, c.table_pages}, runtime);
  host_table_.resize(static_cast<size_t>(c.table_rows * c.table_pages));
  known_rows_.resize(static_cast<size_t>(c.table_rows));
}

int64_t DeviceBatch::bytes_for(const DeviceBatchConfig& config) {
  int64_t bytes = bytes_of<int32_t>(config.table_rows * config.table_pages) + config.plan_bytes;
  for (const int64_t section : section_bytes(config)) bytes += aligned(section);
  return bytes;
}

DeviceBatch::Section DeviceBatch::reserve(int64_t bytes) {
  const Section section{bytes_, bytes};
  bytes_ += aligned(bytes);
  return section;
}

// Stages `count` elements and returns their device view, or null for none.
TensorView DeviceBatch::place(const Section& section, DType dtype, const void* from, int64_t count) {
  const int64_t bytes = count * size_of(dtype);
  HR_REQUIRE(bytes <= section.bytes, ErrorCode::kInvalidArgument, "device batch: ", bytes, " bytes of ", name_of(dtype),
             " are more than the ", section.bytes, " that were reserved (", config_.max_requests, " requests, ",
             config_.max_tokens, " tokens)");
  if (count == 0) return {};
  std::memcpy(staging_.data() + section.offset, from, static_cast<size_t>(bytes));
  used_ = std::max(used_, section.offset + bytes);
  return {static_cast<char*>(memory_.data()) + section.offset, dtype, {count}, memory_.view().device()};
}

void DeviceBatch::note_pages(const AttnMetadata& host, int32_t row, int64_t pages) {
  pages = std::min(pages, host.page_table.dim(1));
  if (pages <= 0 || row < 0) return;
  HR_REQUIRE(row < config_.table_rows && pages <= config_.table_pages, ErrorCode::kInvalidArgument,
             "device batch: row ", row, " with ", pages, " pages is outside the table of ", config_.table_rows,
             " rows and ", config_.table_pages, " pages");
  KnownRow& known_row = known_rows_[static_cast<size_t>(row)];
  const auto version =
      host.row_versions ? std::optional(static_cast<const int64_t*>(host.row_versions.data())[row]) : std::nullopt;
  if (version && version == known_row.version && pages <= known_row.pages) return;
  known_row = {version, pages};
  const auto* from = static_cast<const int32_t*>(host.page_table.select(row).data());
  int32_t* known = host_table_.data() + row * config_.table_pages;
  // Often nothing has changed. memcmp finds that several times as fast as a loop that locates changes.
  if (std::memcmp(from, known, static_cast<size_t>(bytes_of<int32_t>(pages))) == 0) return;
  const int64_t first = std::mismatch(from, from + pages, known).first - from;
  std::copy(from + first, from + pages, known + first);
  changed_.push_back({row * config_.table_pages + first, row * config_.table_pages + pages});
}

// A separate copy costs as much as copying a gap of this many elements.
void DeviceBatch::copy_noted_pages() {
  constexpr int64_t kGap = 4096;
  std::sort(changed_.begin(), changed_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < changed_.size();) {
    PageRange range = changed_[i++];
    while (i < changed_.size() && changed_[i].begin - range.end <= kGap)
      range.end = std::max(range.end, changed_[i++].end);
    runtime_.copy_to_device(static_cast<int32_t*>(table_.data()) + range.begin, host_table_.data() + range.begin,
                            static_cast<size_t>(bytes_of<int32_t>(range.end - range.begin)));
  }
  changed_.clear();
}

// Packs the arrays contiguously, largest elements first, which keeps all aligned.
std::vector<TensorView> DeviceBatch::place_extra(Tensor& memory, const std::vector<TensorView>& from) {
  int64_t bytes = 0;
  for (const TensorView& x : from) bytes += x.bytes();
  if (!memory || memory.bytes() < bytes) memory = Tensor(DType::kU8, {std::max<int64_t>(bytes, 1)}, runtime_);
  std::vector<TensorView> placed;
  int64_t at = 0;
  for (const TensorView& x : from) {
    char* place = static_cast<char*>(memory.data()) + at;
    at += x.bytes();
    runtime_.copy_to_device(place, x.data(), static_cast<size_t>(x.bytes()));
    placed.emplace_back(place, x.dtype(), x.shape(), runtime_.device());
  }
  return placed;
}

void DeviceBatch::place_merge(const TokenMerge& host) {
  const auto placed = place_extra(merge_, {host.ids, host.probs, host.residual, host.mask});
  TokenMerge& to = soft_.token_merge.emplace(host);
  to.ids = placed[0], to.probs = placed[1], to.residual = placed[2], to.mask = placed[3];
}

void DeviceBatch::place_conditioning(const SoftInputs& host) {
  const SelfConditioning& signal = *host.self_conditioning;
  std::vector<TensorView> parts = host.conditioning;
  if (parts.empty()) parts.push_back(signal.logits);
  const int64_t rows = host.num_conditioned(), vocab = parts.front().dim(1);
  if (!keeps_conditioning_ && (!conditioning_ || conditioning_.dim(0) < rows)) {
    conditioning_ = Tensor(DType::kF32, {rows, vocab}, runtime_);
  }
  HR_REQUIRE(rows <= conditioning_.dim(0) && vocab == conditioning_.dim(1), ErrorCode::kInvalidArgument,
             "device batch: conditioning [", rows, ", ", vocab, "], expected up to ", conditioning_.shape());
  auto* to = static_cast<char*>(conditioning_.data());
  for (const TensorView& part : parts) {
    const auto bytes = static_cast<size_t>(part.bytes());
    const bool is_there = part.device() == runtime_.device();
    if (part.data() != to) {  // a capture passes this memory itself
      is_there ? runtime_.copy_on_device(to, part.data(), bytes) : runtime_.copy_to_device(to, part.data(), bytes);
    }
    to += bytes;
  }
  if (!keeps_conditioning_) {
    const int64_t tokens = signal.mask.numel();
    if (!marks_ || marks_.numel() < tokens) marks_ = Tensor(DType::kU8, {tokens}, runtime_);
    runtime_.copy_to_device(marks_.data(), signal.mask.data(), static_cast<size_t>(tokens));
  }
  const int64_t tokens = keeps_conditioning_ ? rows : signal.mask.numel();
  soft_.self_conditioning = {.mask = marks_.view().slice(0, tokens), .logits = conditioning(rows)};
}

void DeviceBatch::reserve_conditioning(int64_t rows, int64_t vocab) {
  conditioning_ = Tensor::zeros(DType::kF32, {rows, vocab}, runtime_);
  marks_ = Tensor(DType::kU8, {rows}, runtime_);
  const std::vector<uint8_t> ones(static_cast<size_t>(rows), 1);
  runtime_.copy_to_device(marks_.data(), ones.data(), ones.size());
  keeps_conditioning_ = true;
}

const ForwardBatch& DeviceBatch::upload(const ForwardBatch& host) {
  const AttnMetadata& from = host.attn;
  const auto count = [](const auto& array) { return static_cast<int64_t>(array.size()); };
  used_ = 0;
  plans_.forget();
  batch_ = host;
  AttnMetadata& to = batch_.attn;
  const auto flat = [this](const Section& section, const TensorView& x) {
    return x ? place(section, x.dtype(), x.data(), x.numel()) : TensorView();
  };
  // Structures of int32 are copied as bytes.
  const auto bytes = [this](const Section& section, const void* data, int64_t size) {
    return place(section, DType::kU8, data, size).data();
  };
  metadata_.spans = static_cast<const KeySpan*>(bytes(spans_, from.spans.data(), bytes_of<KeySpan>(count(from.spans))));
  metadata_.state_slots = static_cast<const StateSlots*>(
      bytes(state_slots_, from.state_slots.data(), bytes_of<StateSlots>(count(from.state_slots))));
  metadata_.snapshots = static_cast<const StateSnapshot*>(
      bytes(snapshots_, from.snapshots.data(), bytes_of<StateSnapshot>(count(from.snapshots))));
  batch_.input_ids = flat(ids_, host.input_ids);
  batch_.positions = flat(positions_, host.positions);
  to.write_slots = flat(write_slots_, from.write_slots);
  to.encoder_write_slots = flat(encoder_slots_, from.encoder_write_slots);
  batch_.device_logits_rows = place(logits_rows_, DType::kI32, host.logits_rows.data(), count(host.logits_rows));
  const auto num_rows = static_cast<int32_t>(from.num_tokens() - from.padding_rows);
  batch_.device_num_rows = place(num_rows_, DType::kI32, &num_rows, 1);
  runtime_.copy_to_device(memory_.data(), staging_.data(), static_cast<size_t>(used_));
  if (from.page_table) {
    if (from.row_versions.data() != versions_of_known_) known_rows_.assign(known_rows_.size(), {});
    versions_of_known_ = from.row_versions.data();
    for (const KeySpan& s : from.spans) {
      const int64_t keys = std::max(s.ctx_len, s.phys0 + s.q_len);
      note_pages(from, s.page_row, (keys + config_.page_size - 1) / config_.page_size);
      if (s.encoder_len > 0) note_pages(from, s.encoder_page_row, from.page_table.dim(1));
    }
    copy_noted_pages();
    to.page_table = table_;
  }
  metadata_.new_keys = new_keys_of(from);
  metadata_.keeps = from.keeps_nothing() ? DeviceMetadata::Keeps::kNothing : DeviceMetadata::Keeps::kSomething;
  soft_ = {};
  if (host.soft.token_merge) place_merge(*host.soft.token_merge);
  if (host.soft.self_conditioning) place_conditioning(host.soft);
  batch_.soft.on_device = &soft_;
  to.on_device = &metadata_;
  return batch_;
}

}  // namespace headrace
