// Caching allocator: which blocks of a device's memory are free, and for whom. Host code only.
#pragma once
#include <cstddef>
#include <map>
#include <unordered_map>
#include <vector>

namespace headrace::cuda {

// Keeps freed blocks by size for reuse. Owns no memory: the caller allocates and frees it. Not thread-safe.
//
// Blocks handed out during a graph capture belong to graphs from then on, because graphs write to them at every replay.
// Only another capture may reuse them, until the last graph is destroyed. A capture counts as a graph from its start,
// so a failed one leaves nothing behind.
class CachingAllocator {
 public:
  void begin_recording() { recording_ = true, ++num_graphs_; }
  void end_recording() { recording_ = false; }
  bool recording() const { return recording_; }
  // Call when a graph was destroyed or its capture failed, after end_recording().
  void graph_gone() {
    if (--num_graphs_ > 0) return;
    for (auto& [size, blocks] : of_graphs_) {
      for (void* block : blocks) plain_[size].push_back(block), graph_blocks_.erase(block);
    }
    of_graphs_.clear();
  }

  // Returns a free block of exactly that size, or null. During a capture the block may be larger: graphs never run at
  // the same time, so they share blocks.
  void* take(size_t size) {
    return (recording_ ? first_of(of_graphs_, size, Fit::kOrLarger) : first_of(plain_, size, Fit::kExact)).block;
  }
  // For a capture that finds no other memory. Returns a free block that no graph uses, of at least `size` bytes, and
  // gives it to the graphs. Null if there is none.
  void* take_spare(size_t size) {
    const auto [block, of_size] = first_of(plain_, size, Fit::kOrLarger);
    if (block != nullptr) graph_blocks_[block] = of_size;
    return block;
  }
  // Registers a new block, which is in use.
  void add(void* block, size_t size) {
    if (recording_) graph_blocks_[block] = size;
  }
  // Frees a block. `size` is the requested size; a graph's block may be larger.
  void put(void* block, size_t size) {
    const auto of_graph = graph_blocks_.find(block);
    if (of_graph == graph_blocks_.end()) {
      plain_[size].push_back(block);
    } else if (num_graphs_ > 0) {
      of_graphs_[of_graph->second].push_back(block);
    } else {
      plain_[of_graph->second].push_back(block);
      graph_blocks_.erase(of_graph);
    }
  }

  // Removes and returns the free blocks that no graph writes to.
  std::vector<void*> drop_free() {
    std::vector<void*> all;
    for (const auto& [size, blocks] : plain_) all.insert(all.end(), blocks.begin(), blocks.end());
    plain_.clear();
    return all;
  }
  // Removes and returns the graphs' blocks, free or in use.
  std::vector<void*> drop_of_graphs() {
    std::vector<void*> all;
    for (const auto& [block, size] : graph_blocks_) all.push_back(block);
    graph_blocks_.clear();
    of_graphs_.clear();
    return all;
  }

 private:
  using Blocks = std::map<size_t, std::vector<void*>>;  // by size
  enum class Fit { kExact, kOrLarger };
  struct Found {
    void* block = nullptr;
    size_t size = 0;
  };
  static Found first_of(Blocks& blocks, size_t size, Fit fit) {
    for (auto found = blocks.lower_bound(size); found != blocks.end(); ++found) {
      if (fit == Fit::kExact && found->first != size) break;
      if (found->second.empty()) continue;
      void* block = found->second.back();
      found->second.pop_back();
      return {block, found->first};
    }
    return {};
  }

  Blocks plain_, of_graphs_;                        // free blocks
  std::unordered_map<void*, size_t> graph_blocks_;  // every block that a graph may write to, free or not, and its size
  int num_graphs_ = 0;
  bool recording_ = false;
};

}  // namespace headrace::cuda
