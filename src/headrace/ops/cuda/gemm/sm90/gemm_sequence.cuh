// Layout that the warps of the GEMM sequence kernel share: which weight rows a CTA takes, in which order they come, and
// where data lies in shared memory.
#pragma once
#include "headrace/ops/cuda/arch/mma_sm80.cuh"
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/gemm/gemm_common.cuh"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_hand_over.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_plan.h"

namespace headrace::cuda::gemm_sequence {

constexpr int kTeams = GemmSequencePlan::kTeams, kTeamThreads = 128, kConsumers = kTeams * kTeamThreads;
constexpr int kThreads = kConsumers + kTeams * 32;  // a producer warp for each consumer warpgroup
constexpr int kUnitRows = GemmSequencePlan::kUnitRows, kGroupTiles = GemmSequencePlan::kGroupTiles;
constexpr int kColumns = GemmSequencePlan::kMostRows;  // rows of x in the MMA, padded with zeros
static_assert(GemmSequencePlan::kChunkLen == kPartLen && kTeams * GemmSequencePlan::kSliceChunks == kSegments);

// Named barriers of the consumer threads, one for each place where they synchronise.
constexpr int kTeam0 = 1, kTeam1 = 2, kStepMay = 3, kSquared = 4, kXIsHere = 5, kGroupSummed = 6, kStepDone = 7,
              kSquaresSeen = 8, kGroupMultiplied = 9;

struct Product {
  int rows, end_unit;  // end_unit: of this weight and all before it
  Result result;
};

// One step. Its weights come in units of four rows of one weight; for SwiGLU, four rows of each.
struct Step {
  Rows x;                   // in the hand-over memory if it is handed over
  const void* norm_weight;  // of x's dtype
  float eps, weight_offset;
  Product products[FusedLinearArgs::kMaxProducts];
  int in, slices;
  int units, units_more;  // units of each CTA, and how many CTAs have one more
  bool combined, whole_chunks;
  bool handed, hands_over;  // whether x is handed over, and the results to the next step
  After after;

  __device__ int tile_units() const { return combined ? 1 : 2; }
  __device__ int tiles(int of_units) const { return combined ? of_units : (of_units + 1) / 2; }  // no division
};

struct Steps {
  Step steps[kMostSequenceSteps];
  int num_steps, rows;
  GemmSequencePlan plan;
  uint32_t* barrier;  // grid barrier; its low bits are zero between two barriers
  char* exchange;     // two generations of hand-over memory
};

struct Params {
  CUtensorMap weights[kMostSequenceSteps][FusedLinearArgs::kMaxProducts];
  Steps steps;
};

// Units of one step that this CTA takes.
struct Share {
  int begin, end;
  __device__ explicit Share(const Step& step)
      : begin(step.units * static_cast<int>(blockIdx.x) + min(static_cast<int>(blockIdx.x), step.units_more)),
        end(begin + step.units + (static_cast<int>(blockIdx.x) < step.units_more ? 1 : 0)) {}
  __device__ bool empty() const { return begin == end; }
};

// Calls f(first unit, end) for every group of tiles.
template <class F>
__device__ inline void for_groups(const Step& step, const F& f) {
  const Share share(step);
  const int units = kGroupTiles * step.tile_units();
  for (int unit = share.begin; unit < share.end; unit += units) f(unit, min(share.end, unit + units));
}

// The weight that a unit belongs to, and the unit's first row there.
struct Place {
  int product = 0, row;
  __device__ Place(const Step& step, int unit) {
    int before = 0;
    while (!step.combined && unit >= step.products[product].end_unit) before = step.products[product++].end_unit;
    row = (unit - before) * kUnitRows;
  }
};

// One result of a group, and the thread that adds up its splits: a warp for each row of x.
struct Output {
  int row;            // of x
  int at;             // of the group's rows, or pairs of rows
  int unit, product;  // of the step
  int column;         // of y
  bool wanted;

  __device__ Output(const Steps& p, const Step& step, int begin, int end)
      : row(static_cast<int>(threadIdx.x) / 32), at(static_cast<int>(threadIdx.x) % 32), unit(begin + at / kUnitRows) {
    wanted = at < GemmSequencePlan::kGroupRows && row < p.rows && unit < end;
    if (!wanted) return;
    const Place place(step, unit);
    product = place.product, column = place.row + at % kUnitRows;
    wanted = column < step.products[product].rows;
  }
};

// Returns the bits of a residual's element. Converting them waits for the load, so that comes as late as possible.
__device__ inline uint32_t fresh_bits(const Rows& x, int64_t row, int64_t column) {
  const int64_t at = x.at(row) + column;
  if (x.type == DType::kF32) return __ldcg(static_cast<const unsigned*>(x.data) + at);
  return __ldcg(static_cast<const unsigned short*>(x.data) + at);
}

// Layout of shared memory: addresses, and pointers to what ordinary instructions use.
struct Shared {
  uint32_t x, ring, norm;
  float *parts, *squares;
  uint32_t barriers;
  int* step;            // the step that is being multiplied
  char** other_values;  // hand-over memory of the previous launch

  __device__ Shared(const Steps& p, char* memory)
      : x(shared_address(memory)),
        ring(x + p.plan.x_bytes()),
        norm(ring + p.plan.ring_bytes()),
        parts(reinterpret_cast<float*>(memory + (norm - x) + p.plan.norm_bytes())),
        squares(parts + GemmSequencePlan::kPartBytes / 4),
        barriers(shared_address(squares) + GemmSequencePlan::kSquareBytes),
        step(reinterpret_cast<int*>(reinterpret_cast<char*>(squares) + GemmSequencePlan::kSquareBytes +
                                    GemmSequencePlan::kBarrierBytes)),
        other_values(reinterpret_cast<char**>(step + 2)) {}
};

// The pipeline of one warpgroup: its slots, the next slot and its phase parity.
struct Ring {
  uint32_t slots_at, barriers;
  int slots, next_slot = 0;
  uint32_t phase = 0;

  __device__ Ring(const Steps& p, const Shared& shared, int team)
      : slots_at(shared.ring + team * p.plan.slots * GemmSequencePlan::kSlotBytes),
        barriers(shared.barriers + team * GemmSequencePlan::kMostSlots * 16),
        slots(p.plan.slots) {}
  __device__ uint32_t full() const { return barriers + next_slot * 16; }
  __device__ uint32_t empty() const { return full() + 8; }
  __device__ uint32_t slot() const { return slots_at + next_slot * GemmSequencePlan::kSlotBytes; }
  __device__ void next() {
    if (++next_slot == slots) next_slot = 0, phase ^= 1;
  }
};

// A TMA box: the rows of one half of a slot.
struct Box {
  const CUtensorMap* weight;
  int row;

  // Zeros past the ends.
  __device__ void copy(uint32_t to, const Step& step, int slice, uint32_t full) const {
    const int chunk = slice * GemmSequencePlan::kSliceChunks;
    if (step.whole_chunks) return tma_load(to, *weight, 0, row, chunk, 0, full, kReadOnce);
#pragma unroll 1
    for (int c = 0; c < GemmSequencePlan::kSliceChunks; ++c) {
      tma_load(to + c * (GemmSequencePlan::kBoxBytes / GemmSequencePlan::kSliceChunks), *weight,
               (chunk + c) * GemmSequencePlan::kChunkLen, row, 0, 0, full, kReadOnce);
    }
  }
};

// Producer: one thread for each consumer warpgroup, from the kernel's start to its end. Weights are constants, so it
// loads them across grid barriers. For a step that has not begun it loads few slots at a time. Otherwise they would
// queue ahead of weights that other CTAs wait for, and of the results that are written when a step ends.
__device__ inline void bring_weights(const Params& given, const Steps& p, const Shared& shared, int team) {
  Ring ring(p, shared, team), landing = ring;
  int under_way = 0, begun = 0;
  for (int s = 0; s < p.num_steps; ++s) {
    const Step& step = p.steps[s];
    int first_slice = team;
    for_groups(step, [&](int begin, int end) {
      Box boxes[kGroupTiles * 2];
      const int count = (end - begin) * (step.combined ? 2 : 1);
#pragma unroll
      for (int b = 0; b < kGroupTiles * 2; ++b) {
        if (b >= count) continue;
        const Place place(step, begin + (step.combined ? b / 2 : b));
        boxes[b] = {&given.weights[s][step.combined ? b % 2 : place.product], place.row};
      }
      for (int slice = first_slice; slice < step.slices; slice += kTeams) {
#pragma unroll
        for (int b = 0; b < kGroupTiles * 2; b += 2) {
          if (b >= count) continue;
          const bool two = b + 1 < count;
          if (begun < s) begun = atomicAdd(shared.step, 0);
          const int most = begun < s ? min(p.plan.slots, GemmSequencePlan::kEarlySlots) : p.plan.slots;
          for (; under_way >= most; --under_way, landing.next()) barrier_wait(landing.full(), landing.phase);
          ++under_way;
          barrier_wait(ring.empty(), ring.phase ^ 1);
          barrier_expect(ring.full(), two ? 2 * GemmSequencePlan::kBoxBytes : GemmSequencePlan::kBoxBytes);
          boxes[b].copy(ring.slot(), step, slice, ring.full());
          if (two) boxes[b + 1].copy(ring.slot() + GemmSequencePlan::kBoxBytes, step, slice, ring.full());
          ring.next();
        }
      }
      if (p.plan.holds(step.slices)) first_slice = (first_slice + 1) % kTeams;
    });
  }
}

// Grid barrier. All CTAs are resident at once, as they are launched so. Thread 0 of the consumers arrives and waits;
// the others synchronise with it before and after. A barrier flips the counter's highest bit and leaves the others
// zero, so nothing is reset between launches.
struct Meeting {
  uint32_t* counter;
  uint32_t before = 0;  // the highest bit, read when no CTA can have arrived

  __device__ void begin() { before = read(After::kAsked); }
  __device__ void arrive(After after) const {
    const uint32_t count = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    if (after == After::kSeen) {
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(count) : "memory");
    } else {
      asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(count) : "memory");
    }
  }
  __device__ void wait(After after) {
    while (((read(after) ^ before) & 0x80000000u) == 0) {
    }
    before ^= 0x80000000u;
  }

 private:
  __device__ uint32_t read(After after) const {
    uint32_t value;
    if (after != After::kAsked) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    } else {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    }
    return value;
  }
};

}  // namespace headrace::cuda::gemm_sequence
