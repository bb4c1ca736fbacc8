// A weight file that shrinks while it is mapped.
#include "headrace/core/sigbus_guard.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "headrace/core/tensor.h"
#include "headrace/weights/checkpoint.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using test::TempDir;

int sum_after_truncation(const TempDir& dir, SigbusGuard* guard) {
  const Tensor zeros = Tensor::zeros(DType::kF32, {1 << 16});
  test::write_safetensors(dir / "model.safetensors", {{"w", zeros}});
  Checkpoint checkpoint = Checkpoint::open(dir.path(), {.guard = guard});
  const TensorView w = checkpoint.tensor("w", {1 << 16});
  if (::truncate((dir / "model.safetensors").c_str(), 128) != 0) std::_Exit(9);
  int sum = 0;
  for (int64_t i = 0; i < w.numel(); ++i) sum += static_cast<int>(static_cast<volatile float*>(w.data())[i]);
  return sum;
}

TEST(SigbusGuardDeathTest, AFileThatShrinksEndsInOneLineAndStatus3) {
  const TempDir dir;
  EXPECT_EXIT(
      {
        SigbusGuard guard;
        std::_Exit(sum_after_truncation(dir, &guard));
      },
      testing::ExitedWithCode(3), "headrace: .*model.safetensors: the file became shorter while it was in use");
}

TEST(SigbusGuardDeathTest, AFaultElsewhereKeepsItsSignal) {
  const TempDir dir;
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL);
        SigbusGuard guard;
        std::_Exit(sum_after_truncation(dir, nullptr));
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST(SigbusGuard, OneAtATime) {
  SigbusGuard guard;
  EXPECT_THROW(SigbusGuard(), Error);
}

TEST(SigbusGuard, PlacesAreReused) {
  SigbusGuard guard;
  int place = 0;
  for (int i = 0; i < SigbusGuard::kMaxRanges; ++i) ASSERT_TRUE(guard.add(&place, 1, "x"));
  EXPECT_FALSE(guard.add(&place, 1, "x"));
  guard.remove(&place);
  EXPECT_TRUE(guard.add(&place, 1, "x"));
}

}  // namespace
}  // namespace headrace
