// Work decomposition of the Gated DeltaNet kernels: passes over chunks, CTAs per head, state rows per lane. Pure
// functions from sizes to a choice, tested on the host.
#pragma once
#include <algorithm>
#include <cstdint>

namespace headrace::cuda {

// Problem size of the chunked rule. A place is the scratch memory of one chunk: its WY factors for all heads.
struct GDNChunks {
  int64_t requests, heads;  // value heads
  int64_t longest;          // chunks of the longest request, plus one per snapshot
  int64_t needed;           // places for all chunks in one pass, for any lengths with the same sum
  int64_t room;             // places that fit in scratch memory
  int64_t room_for_passes;  // places that fit beside one state per request, which carries over to the next pass
  int num_sms;
  bool lengths_known;  // true if the host knows the requests' lengths; several passes require it
};

// A pass over chunks [first, first + count) of every request.
struct GDNPass {
  int64_t first, count;
  int buffer;  // index of the places' buffer
};

// Splits the chunks into passes. If all places fit, there is one pass, and a captured graph serves any lengths with the
// same sum. There are more if they do not fit, or if a few long requests leave SMs idle: these then compute the WY
// factors of the next pass during the state pass of the current one.
class GDNPasses {
 public:
  // Returns true if the chunked kernels can run this problem.
  static constexpr bool serve(const GDNChunks& c) {
    return c.needed <= c.room || (c.lengths_known && c.room_for_passes >= 2 * c.requests);
  }
  // Requires serve(chunks).
  constexpr explicit GDNPasses(const GDNChunks& c) : longest_(c.longest), overlap_(is_faster_overlapping(c)) {
    if (c.needed <= c.room && !overlap_) {
      one_ = true, places_ = c.needed;
      return;
    }
    places_ = c.room_for_passes / num_buffers();
    most_ = places_ / c.requests;
    if (overlap_) most_ = std::min(most_, kMostChunks);
    const int64_t passes = (longest_ + most_ - 1) / most_;
    count_ = overlap_ ? std::min(kFirstChunks, most_) : (longest_ + passes - 1) / passes;
  }

  constexpr bool is_one() const { return one_; }  // all chunks in one pass, for any lengths
  constexpr bool overlap() const { return overlap_; }
  constexpr int num_buffers() const { return overlap_ ? 2 : 1; }
  constexpr int64_t places() const { return places_; }  // per buffer
  // Iteration over several passes; call only if !is_one(). behind() is true after the last pass.
  constexpr GDNPass first() const { return {.first = 0, .count = std::min(count_, longest_), .buffer = 0}; }
  constexpr GDNPass after(const GDNPass& pass) const {
    const int64_t first = pass.first + pass.count;
    const int64_t count = overlap_ ? std::min(most_, pass.count * kGrowth / kGrowthOf) : count_;
    return {.first = first, .count = std::min(count, longest_ - first), .buffer = overlap_ ? 1 - pass.buffer : 0};
  }
  constexpr bool behind(const GDNPass& pass) const { return pass.first >= longest_; }

 private:
  // Chunks of a request per pass, if passes overlap. The first pass is short, because nothing hides its WY factors.
  // Each later pass grows by as much as can be computed during the previous one, because every pass costs microseconds
  // to start.
  static constexpr int64_t kFirstChunks = 32, kMostChunks = 128, kGrowth = 8, kGrowthOf = 5;

  static constexpr bool is_faster_overlapping(const GDNChunks& c) {
    const int64_t left = c.num_sms - 2 * c.requests * c.heads;  // SMs left over by two CTAs per head
    return 8 * left >= c.num_sms && c.longest >= 4 * kFirstChunks && c.room_for_passes >= 2 * c.requests &&
           c.lengths_known;
  }

  int64_t longest_, places_ = 0, most_ = 0, count_ = 0;
  bool overlap_, one_ = false;
};

inline constexpr int kMostGDNCluster = 8;  // CTAs of the value heads of one key head

// Returns the CTAs per value head of the decode step: the most that still leave one CTA per SM at most. `heads` counts
// value heads of all requests; `group` is the value heads per key head.
constexpr int gdn_step_blocks(int heads, int group, int num_sms) {
  for (const int blocks : {4, 2}) {
    if (heads * blocks <= num_sms && group * blocks <= kMostGDNCluster) return blocks;
  }
  return 1;
}

// Returns the state rows per lane of the recurrence. With one row per lane, a CTA covers `block_rows` of a head's
// `head_rows`. One row has the shortest dependency chain but needs an SM for every CTA; more rows need fewer
// instructions.
constexpr int gdn_recurrence_rows(int64_t heads, int head_rows, int block_rows, int num_sms) {
  for (const int rows : {1, 2}) {
    if (heads * (head_rows / (block_rows * rows)) <= num_sms) return rows;
  }
  return 4;
}

}  // namespace headrace::cuda
