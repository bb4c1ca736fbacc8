// The prefix cache: a tree over whole pages of tokens. A node is a page of K and V, and may hold a recurrent state.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace headrace {

// A node's id is the id of its page, so each page is in the tree once at most. The path from a root to a node spells
// the node's prefix, whose last page_size tokens are its own. A root per cache salt: texts of two salts never meet.
//
// A node has users while running requests have its page. It is pending until its page is computed; only its owner, the
// request that computes it, uses it then. Nodes without users are cached and may be evicted. Users of a node use its
// ancestors, too, so the least recently used cached node never has children.
//
// A state belongs to the prefix that its node ends. It is superseded by a state further down if nothing branches off
// between them: a text that goes on takes the deeper one. Superseded states are evicted first, then the least recently
// used. Costs: one hash of a page's tokens for each step down; all else is constant, but for walks between two states.
// Not thread-safe.
class PrefixTree {
 public:
  // Pages have ids 1 to num_pages. Does not own pages or state slots.
  PrefixTree(int32_t num_pages, int32_t page_size);

  static constexpr int32_t kNoSlot = -1;
  struct Evicted {
    int32_t page = 0, state_slot = kNoSlot;  // state_slot: of the page's state
  };

  // A place in the tree: a node, or a root if `page` is 0.
  struct Place {
    int32_t page = 0;
    int32_t root = 0;
  };
  // Returns the root of a salt; that of an unknown salt has no children.
  Place root_of(const std::string& salt) const;
  Place place_of(int32_t page) const { return {page, nodes_[index(page)].root}; }
  // Returns the child of `at` with these page_size tokens, or 0.
  int32_t find(Place at, std::span<const int32_t> tokens) const;
  // Returns true if such a child was evicted, as far as that is remembered.
  bool was_evicted(Place at, std::span<const int32_t> tokens) const;

  enum class Computed : uint8_t { kNo, kYes };
  // Adds `page` as a child of `at` with these tokens and one user. `at` has no such child, and uses `salt`'s root.
  // kNo: it is pending, and `owner` computes it. Returns the place of the node.
  Place insert(Place at, const std::string& salt, std::span<const int32_t> tokens, int32_t page, Computed computed,
               int32_t owner);
  void set_computed(int32_t page);
  bool is_pending(int32_t page) const { return nodes_[index(page)].pending; }
  int32_t owner(int32_t page) const { return nodes_[index(page)].owner; }  // of a pending node
  int32_t num_users(int32_t page) const { return nodes_[index(page)].users; }
  bool contains(int32_t page) const { return nodes_[index(page)].in_tree; }

  void add_user(int32_t page);
  // Of a path, deepest node first. A node without users becomes the most recently used cached one.
  void remove_user(int32_t page);
  // Takes a node without children out of the tree, pending or computed, whose last user is the caller.
  Evicted remove(int32_t page);
  // Evicts the least recently used cached node; one must exist.
  Evicted evict();
  int32_t num_cached() const { return num_cached_; }  // nodes without users

  // Gives a computed node a state, as the most recently used one. False, without effect, if it has one.
  bool attach_state(int32_t page, int32_t slot);
  int32_t state_of(int32_t page) const { return nodes_[index(page)].state; }  // or kNoSlot
  bool lost_state(int32_t page) const { return nodes_[index(page)].lost_state; }
  void use_state(int32_t page);        // the state becomes the most recently used
  int32_t detach_state(int32_t page);  // returns its slot
  // Evicts a state and returns its slot. kSuperseded: nothing if no state is superseded.
  enum class Which : uint8_t { kSuperseded, kAny };
  std::optional<int32_t> evict_state(Which which);
  int32_t num_states() const { return num_states_; }
  bool any_superseded() const { return states_[kSupersededList].first != 0; }
  int32_t num_children(int32_t page) const { return nodes_[index(page)].children; }

 private:
  struct Links {  // of an intrusive list
    int32_t before = 0, after = 0;
  };
  struct List {
    int32_t first = 0, last = 0;
  };
  struct Node {
    uint64_t key = 0;    // hash of the whole prefix with its salt
    int32_t parent = 0;  // page, or 0
    int32_t root = 0;
    int32_t next_in_bucket = 0;
    int32_t users = 0, children = 0, owner = 0;
    int32_t state = kNoSlot;
    Links cached, of_state;
    bool in_tree = false, pending = false, superseded = false, lost_state = false;
  };
  struct Root {
    std::string salt;
    uint64_t key = 0;
    int32_t children = 0;
  };
  static constexpr int32_t kNoRoot = -1;
  static constexpr int kLiveList = 0, kSupersededList = 1;

  static size_t index(int32_t page) { return static_cast<size_t>(page); }
  uint64_t key_of(Place at, std::span<const int32_t> tokens) const;
  int32_t make_root(const std::string& salt);
  void remove_child(const Node& of);
  std::span<int32_t> tokens_of(int32_t page) const;
  int32_t& bucket(uint64_t key) { return buckets_[key & (buckets_.size() - 1)]; }
  void unhash(int32_t page);
  void append(List& list, Links Node::*links, int32_t page);
  void unlink(List& list, Links Node::*links, int32_t page);
  List& state_list(const Node& node) { return states_[node.superseded ? kSupersededList : kLiveList]; }
  void set_superseded(int32_t page, bool superseded);
  int32_t state_above(int32_t page) const;
  void drop_state(int32_t page);

  int32_t page_size_;
  std::vector<Node> nodes_;            // by page; 0 is unused
  std::unique_ptr<int32_t[]> tokens_;  // [num_pages + 1, page_size]
  std::vector<int32_t> buckets_;       // first node of each hash bucket
  std::vector<Root> roots_;            // those in use have children
  std::unordered_map<std::string, int32_t> root_of_salt_;
  std::vector<int32_t> unused_roots_;
  std::vector<uint64_t> evicted_;  // keys of evicted nodes, by their low bits
  List cached_, states_[2];
  int32_t num_cached_ = 0, num_states_ = 0;
};

}  // namespace headrace
