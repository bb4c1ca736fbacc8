// What a graph runner refuses: it needs no device for that.
#include "headrace/engine/cuda_graph_runner.h"
#include "headrace/core/device_runtime.h"

#include <gtest/gtest.h>

#include <utility>

#include "headrace/attention/backend_registry.h"
#include "headrace/cache/kv_pool.h"
#include "toy_diffusion_model.h"

namespace headrace {
namespace {

// Whoever asks for it knows the sizes: the next larger graph would read rows that the step does not have.
TEST(CudaGraphRunner, AStepOfRowsThatIsNotRecordedIsAnError) {
  const testing_support::ToyDiffusionModel model({});
  const KVPool pool(KVPoolConfig{.groups = {{{1, 8, 8}, {0}}}, .num_pages = 2, .page_size = 16});
  const auto backend = make_backend("reference", {}, {.kv_pool = &pool});
  CudaGraphRunner graphs(model, *backend, cpu_runtime(),
                         {.rows = {.sizes = {8, 16}}, .table_rows = 2, .table_pages = 1});
  using Kind = CudaGraphRunner::Kind;
  for (const auto& [kind, size] : {std::pair(Kind::kRows, 0), std::pair(Kind::kRows, 8), std::pair(Kind::kRows, 12),
                                   std::pair(Kind::kRows, 17), std::pair(Kind::kCanvases, 8)}) {
    try {
      graphs.run_rows(kind, size, 1, 10);
      ADD_FAILURE() << size;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInternal) << size;
    }
  }
}

}  // namespace
}  // namespace headrace
