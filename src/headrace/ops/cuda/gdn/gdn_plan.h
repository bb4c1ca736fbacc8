// How Gated DeltaNet's kernels divide their work: passes of chunks, blocks of a head. Pure: sizes in, choice out.
#pragma once
#include <algorithm>
#include <cstdint>

namespace headrace::cuda {

// What the chunked rule has to do. A place holds what is known of a chunk, for all heads, before its state is.
struct GDNChunks {
  int64_t requests, heads;  // value heads
  int64_t longest;          // chunks of the longest request, and one more for each snapshot
  int64_t needed;           // places for all chunks in one pass, whatever the requests' lengths
  int64_t room;             // places that scratch memory has,
  int64_t room_for_passes;  // and beside a state of each request, which the next pass goes on from
  int num_sms;
  bool lengths_known;  // by the host: passes are cut by them
};

// Chunks [first, first + count) of every request.
struct GDNPass {
  int64_t first, count;
  int buffer;  // of places
};

// One pass where all chunks have room: then a captured graph serves any lengths with the same sum. More where they have
// not, and where a few long requests leave multiprocessors on which the next pass's places can be filled meanwhile.
class GDNPasses {
 public:
  static constexpr bool serve(const GDNChunks& c) {
    return c.needed <= c.room || (c.lengths_known && c.room_for_passes >= 2 * c.requests);
  }
  // Of work that they serve.
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

  constexpr bool is_one() const { return one_; }  // of all chunks, whatever the lengths
  constexpr bool overlap() const { return overlap_; }
  constexpr int num_buffers() const { return overlap_ ? 2 : 1; }
  constexpr int64_t places() const { return places_; }  // of a buffer
  // Unless it is one. The last one is behind() all chunks.
  constexpr GDNPass first() const { return {.first = 0, .count = std::min(count_, longest_), .buffer = 0}; }
  constexpr GDNPass after(const GDNPass& pass) const {
    const int64_t first = pass.first + pass.count;
    const int64_t count = overlap_ ? std::min(most_, pass.count * kGrowth / kGrowthOf) : count_;
    return {.first = first, .count = std::min(count, longest_ - first), .buffer = overlap_ ? 1 - pass.buffer : 0};
  }
  constexpr bool behind(const GDNPass& pass) const { return pass.first >= longest_; }

 private:
  // Chunks of a request in a pass, where passes overlap: few in the first, whose places nothing hides, then as many
  // more as can be filled during the pass before, since the start of each pass costs microseconds.
  static constexpr int64_t kFirstChunks = 32, kMostChunks = 128, kGrowth = 8, kGrowthOf = 5;

  static constexpr bool is_faster_overlapping(const GDNChunks& c) {
    const int64_t left = c.num_sms - 2 * c.requests * c.heads;  // multiprocessors without a half of a head
    return 8 * left >= c.num_sms && c.longest >= 4 * kFirstChunks && c.room_for_passes >= 2 * c.requests &&
           c.lengths_known;
  }

  int64_t longest_, places_ = 0, most_ = 0, count_ = 0;
  bool overlap_, one_ = false;
};

inline constexpr int kMostGDNCluster = 8;  // blocks of the heads of one key head

// Blocks that share a head's decode step: so many that every multiprocessor has one block at most, where there are
// fewer heads, of all requests, than multiprocessors. `group`: value heads of a key head.
constexpr int gdn_step_blocks(int heads, int group, int num_sms) {
  for (const int blocks : {4, 2}) {
    if (heads * blocks <= num_sms && group * blocks <= kMostGDNCluster) return blocks;
  }
  return 1;
}

// Rows of a state that a lane of the recurrence keeps, where a block of lanes with one row each has `block_rows` of
// `head_rows`. One row is the shortest chain, for which every block wants a multiprocessor; more need fewer
// instructions.
constexpr int gdn_recurrence_rows(int64_t heads, int head_rows, int block_rows, int num_sms) {
  for (const int rows : {1, 2}) {
    if (heads * (head_rows / (block_rows * rows)) <= num_sms) return rows;
  }
  return 4;
}

}  // namespace headrace::cuda
