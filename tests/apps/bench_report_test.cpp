#include "bench/report.h"

#include <gtest/gtest.h>

namespace headrace::bench {
namespace {

TEST(BenchReport, SharesAreOfTheLimitThatTheCaseNames) {
  const Result read{.name = "a", .median_s = 0.5, .bytes = 100, .flops = 7, .limit_rate = 400.0};
  EXPECT_EQ(json_line(read),
            "{\"name\": \"a\", \"median_s\": 0.500000, \"bytes\": 100, \"flops\": 7, \"limit\": \"R\", "
            "\"limit_rate\": 400, \"rate\": 200, \"share\": 0.500}\n");
  const Result matrix{
      .name = "b", .median_s = 0.5, .bytes = 1, .flops = 50, .limit = Result::Limit::kMatrix, .limit_rate = 200.0};
  EXPECT_NE(json_line(matrix).find("\"limit\": \"M\", \"limit_rate\": 200, \"rate\": 100, \"share\": 0.500"),
            std::string::npos);
}

TEST(BenchReport, AnUnmeasuredLimitIsNull) {
  const Result result{.name = "c", .median_s = 1, .flops = 5, .limit = Result::Limit::kMatrix};
  EXPECT_NE(json_line(result).find("\"limit_rate\": null, \"rate\": 5, \"share\": null"), std::string::npos);
}

TEST(BenchReport, ATimeAloneHasNoRate) {
  EXPECT_EQ(json_line({.name = "d", .median_s = 0.5}), "{\"name\": \"d\", \"median_s\": 0.500000}\n");
}

}  // namespace
}  // namespace headrace::bench
