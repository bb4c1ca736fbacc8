#include "headrace/http/sse.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Sse, WritesEventsAndComments) {
  EXPECT_EQ(sse_event(R"({"a":1})"), "data: {\"a\":1}\n\n");
  EXPECT_EQ(sse_event("[DONE]"), "data: [DONE]\n\n");
  EXPECT_EQ(sse_event(""), "data: \n\n");
  EXPECT_EQ(sse_comment("ping"), ": ping\n\n");
}

TEST(Sse, ALineEndWithinDataBeginsNoField) {
  EXPECT_EQ(sse_event("a\nb\r\nc\rd"), "data: a\ndata: b\ndata: c\ndata: d\n\n");
  EXPECT_EQ(sse_event("a\n"), "data: a\ndata: \n\n");
  EXPECT_EQ(sse_event("a\n\nevent: b"), "data: a\ndata: \ndata: event: b\n\n");
  EXPECT_EQ(sse_comment("a\r\rdata: b"), ": a\n: \n: data: b\n\n");
}

}  // namespace
}  // namespace headrace
