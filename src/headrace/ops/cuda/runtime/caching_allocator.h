// Which blocks of a device's memory are free, and for whom. Host work alone.
#pragma once
#include <cstddef>
#include <map>
#include <unordered_map>
#include <vector>

namespace headrace::cuda {

// Blocks that are handed out while a graph is recorded belong to graphs from then on, which write to them whenever they
// run: only another recording gets them again, until the last graph is gone. A recording counts as a graph from its
// beginning, so one that fails leaves nothing behind. Not thread-safe.
class CachingAllocator {
 public:
  void begin_recording() { recording_ = true, ++num_graphs_; }
  void end_recording() { recording_ = false; }
  bool recording() const { return recording_; }
  // A graph was destroyed, or its recording failed; called behind end_recording().
  void graph_gone() {
    if (--num_graphs_ > 0) return;
    for (auto& [size, blocks] : of_graphs_) {
      for (void* block : blocks) plain_[size].push_back(block), graph_blocks_.erase(block);
    }
    of_graphs_.clear();
  }

  // A free block of that size; graphs, which never run at the same time, share larger ones too. Null if there is none.
  void* take(size_t size) {
    return (recording_ ? first_of(of_graphs_, size, Fit::kOrLarger) : first_of(plain_, size, Fit::kExact)).block;
  }
  // For a recording that finds no other memory: a block of steps without graphs, which becomes the graphs'.
  void* take_spare(size_t size) {
    const auto [block, of_size] = first_of(plain_, size, Fit::kOrLarger);
    if (block != nullptr) graph_blocks_[block] = of_size;
    return block;
  }
  // A new block, which is in use.
  void add(void* block, size_t size) {
    if (recording_) graph_blocks_[block] = size;
  }
  // A block is free again. `size` is what was asked for, which a graph's may be larger than.
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

  // Free blocks that no graph writes to; they are forgotten here.
  std::vector<void*> drop_free() {
    std::vector<void*> all;
    for (const auto& [size, blocks] : plain_) all.insert(all.end(), blocks.begin(), blocks.end());
    plain_.clear();
    return all;
  }
  // Those of graphs, free or not, likewise.
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

  Blocks plain_, of_graphs_;                        // free ones
  std::unordered_map<void*, size_t> graph_blocks_;  // every block that a graph may write to, free or not, and its size
  int num_graphs_ = 0;
  bool recording_ = false;
};

}  // namespace headrace::cuda
