#include "apps/download_progress.h"

#include <gtest/gtest.h>

namespace headrace::app {
namespace {

using Style = DownloadProgressText::Style;

DownloadProgressText::Time after(double seconds) {
  return DownloadProgressText::Time() + std::chrono::hours(1) +
         std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

TEST(DownloadProgress, ABarSaysHowMuchHowFastAndHowLong) {
  DownloadProgressText text(Style::kBar);
  EXPECT_EQ(text.update(0, 4'000'000'000, after(0)), "\r\033[K[                        ] 0 bytes of 4.0 GB");
  EXPECT_EQ(text.update(1'000'000, 4'000'000'000, after(0.1)), "");  // five times a second
  EXPECT_EQ(text.update(1'000'000'000, 4'000'000'000, after(10)),
            "\r\033[K[######                  ] 1.0 GB of 4.0 GB, 100.0 MB/s, 30 s left");
  EXPECT_EQ(text.finish(), "\r\033[K");
}

TEST(DownloadProgress, TheRateIsThatOfTheLastTenSeconds) {
  DownloadProgressText text(Style::kBar);
  for (int i = 0; i <= 10; ++i) text.update(i * 100'000'000, 100'000'000'000, after(i));
  std::string last;
  for (int i = 11; i <= 30; ++i) last = text.update(1'000'000'000 + (i - 10) * 10'000'000, 100'000'000'000, after(i));
  EXPECT_EQ(last, "\r\033[K[                        ] 1.2 GB of 100.0 GB, 10.0 MB/s, 2:44:40 left");
}

TEST(DownloadProgress, LinesComeEveryFiveSeconds) {
  DownloadProgressText text(Style::kLines);
  EXPECT_EQ(text.update(0, 2000, after(0)), "");  // a short download says nothing
  EXPECT_EQ(text.update(900, 2000, after(4.9)), "");
  EXPECT_EQ(text.update(1000, 2000, after(5)), "1.0 kB of 2.0 kB, 200 bytes/s, 5 s left\n");
  EXPECT_EQ(text.update(2000, 2000, after(6)), "");
  EXPECT_EQ(text.finish(), "");
}

TEST(DownloadProgress, JsonComesEverySecond) {
  DownloadProgressText text(Style::kJson);
  EXPECT_EQ(text.update(5, 20, after(0)),
            "{\"event\": \"progress\", \"bytes\": 5, \"total\": 20, \"bytes_per_s\": 0}\n");
  EXPECT_EQ(text.update(10, 20, after(0.5)), "");
  EXPECT_EQ(text.update(20, 20, after(1)),
            "{\"event\": \"progress\", \"bytes\": 20, \"total\": 20, \"bytes_per_s\": 15}\n");
}

TEST(DownloadProgress, StandsAtTheEndOfAnEmptyOne) {
  DownloadProgressText text(Style::kBar);
  EXPECT_EQ(text.update(0, 0, after(0)), "\r\033[K[                        ] 0 bytes of 0 bytes");
}

}  // namespace
}  // namespace headrace::app
