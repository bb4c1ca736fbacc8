#include "headrace/batch/attn_metadata.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/refusal.h"

namespace headrace {
namespace {

std::string refusal_of(const AttnMetadata& m, int32_t page_size = 0) {
  const auto refused = testing_support::refusal_of([&] { m.validate(page_size); });
  EXPECT_EQ(refused.code.value_or(ErrorCode::kInvalidArgument), ErrorCode::kInvalidArgument);
  return refused.sentence;
}

TEST(AttnMetadata, RefusesSpansThatContradictThemselves) {
  const struct {
    KeySpan span;
    const char* message;
  } kRows[] = {
      {{.q_off = 1}, "request 0: rows start at 1, expected 0 (rows are packed without gaps)"},
      {{.q_len = -1}, "request 0: q_len is -1, expected 0 or more"},
      {{.ctx_len = -2}, "request 0: ctx_len is -2, expected 0 or more"},
      {{.phys0 = -4}, "request 0: phys0 is -4, expected 0 or more"},
      {{.hole_begin = 3, .hole_end = 1}, "request 0: hole_begin is 3, expected at least 0 and at most hole_end"},
      {{.block_size = 0}, "request 0: block_size is 0, expected 1 or more"},
      {{.ctx_len = 4, .kind = KeySpan::Kind::kPrefixFull},
       "request 0: ctx_len is 4, expected 0: a prompt under a prefix-full mask is never chunked"},
      {{.kind = KeySpan::Kind::kPrefixFull, .prompt_len = 5, .padded_prompt_len = 4},
       "request 0: prompt_len is 5, expected at most padded_prompt_len"},
  };
  for (const auto& row : kRows) EXPECT_EQ(refusal_of({.spans = {row.span}}), row.message);
}

TEST(AttnMetadata, RefusesTablesThatAreTooSmall) {
  const Tensor table = Tensor::zeros(DType::kI32, {2, 3});
  AttnMetadata m{.spans = {{.ctx_len = 48, .page_row = 1}}, .page_table = table};
  EXPECT_EQ(refusal_of(m, 16), "");
  m.spans[0].ctx_len = 49;
  EXPECT_EQ(refusal_of(m, 16), "request 0 needs 4 pages of cache in row 1, the page table is [2, 3]");
  const Tensor slots = Tensor::zeros(DType::kI64, {2});
  EXPECT_EQ(refusal_of({.spans = {{}}, .write_slots = slots}),
            "batch: 2 write slots, expected one for each of 1 tokens");
  EXPECT_EQ(refusal_of({.spans = {{}}, .state_slots = {{}, {}}}),
            "batch: 2 state slots, expected one for each of 1 requests");
}

TEST(AttnMetadata, RefusesAPageTableOfAnotherKindAndPagesThatThePoolDoesNotHave) {
  const KeySpan span{.ctx_len = 40};
  for (const auto& [table, what] : {std::pair(Tensor::zeros(DType::kI64, {1, 3}).view(), "int64[1, 3]"),
                                    std::pair(Tensor::zeros(DType::kI32, {3}).view(), "int32[3]")}) {
    EXPECT_EQ(refusal_of({.spans = {span}, .page_table = table}, 16),
              std::string("batch: the page table is ") + what + ", expected int32 [rows, pages]");
  }
  const Tensor table = Tensor::zeros(DType::kI32, {1, 4});
  AttnMetadata m{.spans = {span}, .page_table = table};
  const auto refusal = [&m] { return testing_support::refusal_of([&m] { m.validate(16, 9); }).sentence; };
  int32_t* const pages = table.data_as<int32_t>();
  pages[0] = 8, pages[3] = 1000;  // the last is no cached token's
  EXPECT_EQ(refusal(), "");
  pages[2] = 9;
  EXPECT_EQ(refusal(), "request 0: page 2 of its cache is page 9 of the pool, expected 0 to 8");
  pages[2] = -1;
  EXPECT_EQ(refusal(), "request 0: page 2 of its cache is page -1 of the pool, expected 0 to 8");
}

TEST(AttnMetadata, ReadsNoRowsIfTheWriterOfThePageTableBoundsThemByThePool) {
  const Tensor table = Tensor::zeros(DType::kI32, {1, 1});
  set_element(table, 0, 9);
  AttnMetadata m{.spans = {{.ctx_len = 16}}, .page_table = table, .pages_below = 10};
  const auto refusal = [&m] { return testing_support::refusal_of([&m] { m.validate(16, 9); }).sentence; };
  EXPECT_EQ(refusal(), "request 0: page 0 of its cache is page 9 of the pool, expected 0 to 8");
  m.pages_below = 9;
  EXPECT_EQ(refusal(), "") << "the row was read";
  m.spans[0].ctx_len = 17;
  EXPECT_EQ(refusal(), "request 0 needs 2 pages of cache in row 0, the page table is [1, 1]");
}

TEST(AttnMetadata, KeepsNothingWhereNoPoolIsWritten) {
  std::vector<int64_t> none = {kDoNotStore, kDoNotStore}, one = {kDoNotStore, 7};
  const TensorView no_slots(none.data(), DType::kI64, {2}), a_slot(one.data(), DType::kI64, {2});
  AttnMetadata idle{.write_slots = no_slots, .encoder_write_slots = no_slots, .state_slots = {{.read = 3}, {}}};
  EXPECT_TRUE(AttnMetadata().keeps_nothing());
  EXPECT_TRUE(idle.keeps_nothing());
  const auto keeps = [&idle](auto change) {
    AttnMetadata changed = idle;
    change(changed);
    return !changed.keeps_nothing();
  };
  EXPECT_TRUE(keeps([&](AttnMetadata& m) { m.write_slots = a_slot; }));
  EXPECT_TRUE(keeps([&](AttnMetadata& m) { m.encoder_write_slots = a_slot; }));
  EXPECT_TRUE(keeps([&](AttnMetadata& m) { m.state_slots[1].write = 0; }));
  EXPECT_TRUE(keeps([&](AttnMetadata& m) { m.snapshots = {{.num_tokens = 1}}; }));
}

}  // namespace
}  // namespace headrace
