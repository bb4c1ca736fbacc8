// The prefix cache: a tree over whole pages of tokens. A node is a page of K and V, and may hold a recurrent state.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "headrace/core/device_runtime.h"
#include "headrace/core/tensor.h"

namespace headrace {

// A node's id is the id of its page, so each page is in the tree once at most. The path from a root to a node spells
// the node's prefix, whose last page_size tokens are its own. A root per cache salt: texts of two salts never meet.
//
// A node has users while running requests have its page. It is pending until its page is computed; only its owner, the
// request that computes it, uses it then. Nodes without users are cached and may be evicted. Users of a node use its
// ancestors, too, so the least recently used cached node never has children.
//
// A state belongs to the prefix that its node ends. It is superseded when a state is attached further down and nothing
// branches off between them: a text that goes on takes the deeper one. It is live again when a text branches off
// between them, or when the deeper one leaves and none further down supersedes it, too. The tree does not look down for
// a reason to supersede: a state with a deeper one below stays live if it was attached later or if the branch between
// them left. Superseded states are evicted first, each kind in order of its last use.
//
// Costs: a hash of a page's tokens for each find, was_evicted and insert; log(states) for each change of a state; a
// walk to the next state above where a state comes or goes, and where a text branches off while states are superseded.
// All else is constant. Not thread-safe.
class PrefixTree {
 public:
  // Pages have ids 1 to num_pages. Does not own pages or state slots.
  PrefixTree(int32_t num_pages, int32_t page_size);

  static constexpr int32_t kNoSlot = -1, kNoRoot = -1;
  struct Evicted {
    int32_t page = 0, state_slot = kNoSlot;  // state_slot: of the page's state
  };

  // A place in the tree: a node, or the root of a salt if `page` is 0. A node's is valid while the node is in the tree,
  // a root's until a node leaves the tree.
  struct Place {
    int32_t page = 0;
    int32_t root = kNoRoot;
    uint64_t key = 0;  // hash of the prefix with its salt
  };
  // Returns the root of a salt; that of an unknown salt has no children.
  Place root_of(const std::string& salt) const;
  Place place_of(int32_t page) const { return {page, nodes_[index(page)].root, nodes_[index(page)].key}; }
  // Returns the child of `at` with these page_size tokens, or 0.
  int32_t find(Place at, std::span<const int32_t> tokens) const;
  // Returns the pages below `at` that spell `tokens`, as far as they are in the tree. Tokens behind the last whole page
  // do not count. Faster than find() for each page, because cache misses overlap.
  std::vector<int32_t> find_path(Place at, std::span<const int32_t> tokens) const;
  // Returns true if such a child was evicted, as far as that is remembered.
  bool was_evicted(Place at, std::span<const int32_t> tokens) const;

  enum class Computed : uint8_t { kNo, kYes };
  // Adds `page` as a child of `at` with these tokens and one user, who uses `at`, too. `at` has no such child.
  // `salt`: of a root, which may have left the tree meanwhile. kNo: the node is pending, and `owner` computes it.
  // Returns the place of the node.
  Place insert(Place at, const std::string& salt, std::span<const int32_t> tokens, int32_t page, Computed computed,
               int32_t owner);
  void set_computed(int32_t page);
  bool is_pending(int32_t page) const { return nodes_[index(page)].pending; }
  int32_t owner(int32_t page) const { return nodes_[index(page)].owner; }  // of a pending node
  int32_t num_users(int32_t page) const { return nodes_[index(page)].users; }
  bool contains(int32_t page) const { return nodes_[index(page)].in_tree; }

  void add_user(int32_t page);
  // Call it for the nodes of a path from the deepest one up. A node without users becomes the most recently used cached
  // one.
  void remove_user(int32_t page);
  // Takes a node without children out of the tree, pending or computed, whose last user is the caller.
  Evicted remove(int32_t page);
  // Evicts the least recently used cached node; one must exist.
  Evicted evict();
  int32_t num_cached() const { return num_cached_; }         // nodes without users
  size_t num_roots() const { return root_of_salt_.size(); }  // salts with nodes

  // Gives a computed node a state, as the most recently used one. False, without effect, if it has one.
  bool attach_state(int32_t page, int32_t slot);
  int32_t state_of(int32_t page) const { return nodes_[index(page)].state; }  // or kNoSlot
  bool lost_state(int32_t page) const { return nodes_[index(page)].lost_state; }
  void use_state(int32_t page);        // the state becomes the most recently used
  int32_t detach_state(int32_t page);  // returns its slot
  // Evicts a state and returns its slot. kSuperseded: nothing if no state is superseded.
  enum class Which : uint8_t { kSuperseded, kAny };
  std::optional<int32_t> evict_state(Which which);
  int32_t num_states() const { return static_cast<int32_t>(live_.size() + superseded_.size()); }
  bool any_superseded() const { return !superseded_.empty(); }
  int32_t num_children(int32_t page) const { return nodes_[index(page)].children; }
  bool has_children(Place at) const;
  // Returns the newest child of `at` if it is still there, else 0, though there may be others.
  int32_t newest_child(Place at) const;
  std::span<const int32_t> tokens_of(int32_t page) const;

 private:
  // Memory of the CPU runtime: aligned to cache lines, and in huge pages where it is large.
  template <class T>
  struct HostAllocator {
    using value_type = T;
    T* allocate(size_t count) { return static_cast<T*>(cpu_runtime().allocate(count * sizeof(T))); }
    void deallocate(T* memory, size_t count) noexcept { cpu_runtime().release(memory, count * sizeof(T)); }
    bool operator==(const HostAllocator&) const = default;
  };
  template <class T>
  using HostVector = std::vector<T, HostAllocator<T>>;
  using States = std::set<std::pair<uint64_t, int32_t>>;  // (last use, page), least recently used first
  struct alignas(64) Node {                               // a cache line
    uint64_t key = 0;
    uint64_t last_use = 0;  // of its state
    int32_t parent = 0;     // page, or 0
    int32_t root = 0;
    int32_t before = 0, after = 0;  // in the list of cached nodes; 0: none
    int32_t users = 0, children = 0, owner = 0;
    int32_t newest_child = 0;
    int32_t state = kNoSlot;
    bool in_tree = false, pending = false, superseded = false, lost_state = false;
  };
  struct Root {
    std::string salt;
    int32_t children = 0, newest_child = 0;
  };
  // An entry of an open-addressing hash table with linear probing. It tells nearly all other prefixes apart without
  // their nodes.
  struct Entry {
    uint32_t tag = 0;  // low bits of the key
    int32_t page = 0;  // 0: empty
  };

  static size_t index(int32_t page) { return static_cast<size_t>(page); }
  int32_t root_for(const std::string& salt);
  void remove_child(const Node& of);
  std::span<int32_t> own_tokens(int32_t page) const;
  int32_t& newest_child_of_parent(const Node& node);
  int32_t find(uint64_t key, Place at, std::span<const int32_t> tokens) const;
  size_t home_of(uint64_t key) const { return key & (entries_.size() - 1); }
  size_t behind(size_t entry) const { return (entry + 1) & (entries_.size() - 1); }
  void prefetch_node(uint64_t key) const;
  void add_entry(uint64_t key, int32_t page);
  void remove_entry(uint64_t key, int32_t page);
  void add_cached(int32_t page);
  void remove_cached(int32_t page);
  States& states_like(const Node& node) { return node.superseded ? superseded_ : live_; }
  void set_superseded(int32_t page, bool superseded);
  int32_t state_above(int32_t page) const;
  void drop_state(int32_t page);

  int32_t page_size_;
  HostVector<Node> nodes_;     // by page; 0 is unused
  Tensor tokens_;              // int32 [num_pages + 1, page_size]
  HostVector<Entry> entries_;  // at most half of them are in use
  std::vector<Root> roots_;    // those in use have children
  std::unordered_map<std::string, int32_t> root_of_salt_;
  std::vector<int32_t> unused_roots_;
  HostVector<uint64_t> evicted_;                // keys of evicted nodes, by their low bits
  int32_t first_cached_ = 0, last_cached_ = 0;  // least and most recently used; 0: none
  int32_t num_cached_ = 0;
  States live_, superseded_;
  uint64_t num_uses_ = 0;  // of states
};

}  // namespace headrace
