#include "headrace/batch/attn_metadata.h"

#include <algorithm>

namespace headrace {
namespace {

void check_span(const KeySpan& span, int64_t request) {
  const auto refuse = [request](const char* what, int64_t found, const char* expected) {
    throw Error(ErrorCode::kInvalidArgument,
                str("request ", request, ": ", what, " is ", found, ", expected ", expected));
  };
  if (span.q_len < 0) refuse("q_len", span.q_len, "0 or more");
  if (span.ctx_len < 0) refuse("ctx_len", span.ctx_len, "0 or more");
  if (span.phys0 < 0) refuse("phys0", span.phys0, "0 or more");
  if (span.hole_begin < 0 || span.hole_begin > span.hole_end) {
    refuse("hole_begin", span.hole_begin, "at least 0 and at most hole_end");
  }
  if (span.block_size < 1) refuse("block_size", span.block_size, "1 or more");
  if (span.kind == KeySpan::Kind::kPrefixFull && span.ctx_len != 0) {
    refuse("ctx_len", span.ctx_len, "0: a prompt under a prefix-full mask is never chunked");
  }
  if (span.kind == KeySpan::Kind::kPrefixFull && span.prompt_len > span.padded_prompt_len) {
    refuse("prompt_len", span.prompt_len, "at most padded_prompt_len");
  }
}

void check_page_table(const TensorView& table) {
  HR_REQUIRE(table.dtype() == DType::kI32 && table.rank() == 2, ErrorCode::kInvalidArgument,
             "batch: the page table is ", name_of(table.dtype()), table.shape(), ", expected int32 [rows, pages]");
}

void check_pages(const AttnMetadata& m, const KeySpan& span, int64_t request, int32_t page_size, int64_t pool_pages) {
  const int64_t pages = (span.ctx_len + page_size - 1) / page_size;
  if (pages == 0) return;
  HR_REQUIRE(m.page_table && span.page_row >= 0 && span.page_row < m.page_table.dim(0) && pages <= m.page_table.dim(1),
             ErrorCode::kInvalidArgument, "request ", request, " needs ", pages, " pages of cache in row ",
             span.page_row, ", the page table is ", m.page_table.shape());
  if (m.page_table.device().type != DeviceType::kCPU || m.pages_below <= pool_pages) return;
  const auto table = m.page_table.as<const int32_t, 2>("page table");
  for (int64_t i = 0; i < pages; ++i) {
    const int32_t page = table(span.page_row, i);
    HR_REQUIRE(page >= 0 && page < pool_pages, ErrorCode::kInvalidArgument, "request ", request, ": page ", i,
               " of its cache is page ", page, " of the pool, expected 0 to ", pool_pages - 1);
  }
}

bool stores_nothing(const TensorView& slots) {
  if (!slots) return true;
  const auto slot = slots.as<const int64_t, 1>("write slots");
  for (int64_t i = 0; i < slot.dim(0); ++i) {
    if (slot(i) != kDoNotStore) return false;
  }
  return true;
}

}  // namespace

bool AttnMetadata::keeps_nothing() const {
  if (on_device != nullptr) return on_device->keeps == DeviceMetadata::Keeps::kNothing;
  return stores_nothing(write_slots) && stores_nothing(encoder_write_slots) && snapshots.empty() &&
         std::ranges::all_of(state_slots, [](const StateSlots& slots) { return slots.write == kNoState; });
}

void AttnMetadata::validate(int32_t page_size, int64_t pool_pages) const {
  if (page_size > 0 && page_table) check_page_table(page_table);
  int64_t next = 0;
  for (int64_t r = 0; r < num_requests(); ++r) {
    const KeySpan& span = spans[static_cast<size_t>(r)];
    HR_REQUIRE(span.q_off == next, ErrorCode::kInvalidArgument, "request ", r, ": rows start at ", span.q_off,
               ", expected ", next, " (rows are packed without gaps)");
    next += span.q_len;
    check_span(span, r);
    if (page_size > 0) check_pages(*this, span, r, page_size, pool_pages);
  }
  HR_REQUIRE(!write_slots || write_slots.numel() == next, ErrorCode::kInvalidArgument, "batch: ", write_slots.numel(),
             " write slots, expected one for each of ", next, " tokens");
  HR_REQUIRE(state_slots.empty() || state_slots.size() == spans.size(), ErrorCode::kInvalidArgument,
             "batch: ", state_slots.size(), " state slots, expected one for each of ", spans.size(), " requests");
}

}  // namespace headrace
