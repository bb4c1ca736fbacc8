#include "headrace/cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "headrace/core/error.h"
#include "support/random.h"

namespace headrace {
namespace {

using testing_support::Random;
using Ids = std::vector<int32_t>;
using Computed = PrefixTree::Computed;
using Which = PrefixTree::Which;
using Place = PrefixTree::Place;

// A tree of pages of two tokens. A page's tokens are given as one number.
class PrefixTreeTest : public testing::Test {
 protected:
  static Ids page_of(int32_t number) { return {number, number + 1}; }
  int32_t find(Place at, int32_t number) const { return tree_.find(at, page_of(number)); }
  bool was_evicted(Place at, int32_t number) const { return tree_.was_evicted(at, page_of(number)); }
  Place root(const std::string& salt = "") const { return tree_.root_of(salt); }
  Place insert(Place at, int32_t number, int32_t page, Computed computed = Computed::kYes, int32_t owner = 0) {
    return tree_.insert(at, "", page_of(number), page, computed, owner);
  }
  // Inserts a chain behind `at` whose pages are numbered like their tokens. Returns its last place.
  Place insert_chain(Place at, const Ids& pages) {
    for (const int32_t page : pages) at = insert(at, page, page);
    return at;
  }
  void remove_users(const Ids& deepest_first) {
    for (const int32_t page : deepest_first) tree_.remove_user(page);
  }

  static Ids first_of(const Ids& ids, size_t count) {
    return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  PrefixTree tree_{16, 2};
};

TEST_F(PrefixTreeTest, FindsAChildByItsTokensAndItsPlace) {
  EXPECT_EQ(find(root(), 7), 0);
  const Place first = insert(root(), 7, 3);
  EXPECT_EQ(first.page, 3);
  EXPECT_EQ(find(root(), 7), 3);
  EXPECT_EQ(find(root(), 8), 0);
  EXPECT_EQ(find(first, 7), 0) << "the same tokens one page further down are another prefix";
  const Place second = insert(first, 7, 5);
  EXPECT_EQ(find(tree_.place_of(3), 7), 5);
  EXPECT_EQ(find(second, 7), 0);
  EXPECT_EQ(tree_.num_children(3), 1);
  EXPECT_EQ(tree_.num_children(5), 0);
}

TEST_F(PrefixTreeTest, FindsThePathOfALongText) {
  PrefixTree tree(100, 2);
  Ids text(200), path(100);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(i * i % 7);
  Place at = tree.root_of("");
  EXPECT_EQ(tree.find_path(at, text), Ids());
  for (size_t i = 0; i < path.size(); ++i) {
    path[i] = static_cast<int32_t>((i * 37 + 5) % 100 + 1);
    at = tree.insert(at, "", std::span(text).subspan(2 * i, 2), path[i], Computed::kYes, 0);
  }
  EXPECT_EQ(tree.find_path(tree.root_of(""), text), path);
  EXPECT_EQ(tree.find_path(tree.root_of("other"), text), Ids());
  for (size_t known = 0; known < path.size(); ++known) {
    Ids other = text;
    other[2 * known + known % 2] += 100;
    EXPECT_EQ(tree.find_path(tree.root_of(""), other), first_of(path, known));
    EXPECT_EQ(tree.find_path(tree.root_of(""), std::span(text).first(2 * known + 1)), first_of(path, known));
    EXPECT_EQ(tree.find_path(tree.place_of(path[known]), std::span(text).subspan(2 * known + 2)),
              Ids(path.begin() + static_cast<std::ptrdiff_t>(known) + 1, path.end()));
  }
}

TEST_F(PrefixTreeTest, TwoSaltsWithEqualTokensNeverMeet) {
  tree_.insert(root("a"), "a", page_of(1), 1, Computed::kYes, 0);
  EXPECT_EQ(find(root("b"), 1), 0);
  tree_.insert(root("b"), "b", page_of(1), 2, Computed::kYes, 0);
  EXPECT_EQ(find(root("a"), 1), 1);
  EXPECT_EQ(find(root("b"), 1), 2);
  EXPECT_EQ(find(root(""), 1), 0);
  tree_.remove(1);
  EXPECT_EQ(find(root("a"), 1), 0);
  EXPECT_EQ(find(root("b"), 1), 2);
}

TEST_F(PrefixTreeTest, ASaltsRootThatLeftMeanwhileIsMadeAgain) {
  const Place left = tree_.place_of(tree_.insert(root("a"), "a", page_of(1), 1, Computed::kYes, 0).page);
  const Place at = root("a");
  tree_.remove(1);
  tree_.insert(root("b"), "b", page_of(1), 2, Computed::kYes, 0);
  EXPECT_EQ(root("b").root, left.root) << "the new salt has the old one's root, or this test shows nothing";
  EXPECT_EQ(find(at, 1), 0) << "the page of another salt";
  tree_.insert(at, "a", page_of(1), 3, Computed::kYes, 0);
  EXPECT_EQ(find(root("a"), 1), 3);
  EXPECT_EQ(find(root("b"), 1), 2);
  EXPECT_EQ(tree_.num_roots(), 2U);
}

TEST_F(PrefixTreeTest, SaltsWithoutNodesAreForgotten) {
  for (int32_t i = 0; i < 1000; ++i) {
    const std::string salt = "salt " + std::to_string(i);
    EXPECT_EQ(root(salt).root, PrefixTree::kNoRoot);
    EXPECT_EQ(tree_.insert(root(salt), salt, page_of(1), 1 + i % 2, Computed::kYes, 0).root, i == 0 ? 0 : i % 2);
    if (i > 0) tree_.remove(2 - i % 2);
    EXPECT_EQ(tree_.num_roots(), 1U);
  }
  tree_.remove(2);
  EXPECT_EQ(tree_.num_roots(), 0U);
}

TEST_F(PrefixTreeTest, APendingNodeHasAnOwnerUntilItIsComputed) {
  const Place first = insert(root(), 1, 1, Computed::kNo, 42);
  insert(first, 2, 2, Computed::kNo, 42);
  EXPECT_EQ(find(root(), 1), 1);
  EXPECT_TRUE(tree_.is_pending(1));
  EXPECT_EQ(tree_.owner(2), 42);
  EXPECT_EQ(tree_.num_users(1), 1);
  EXPECT_THROW(tree_.add_user(1), Error);
  EXPECT_THROW(tree_.remove_user(1), Error);
  EXPECT_THROW(tree_.attach_state(1, 0), Error);
  tree_.set_computed(1);
  EXPECT_THROW(tree_.set_computed(1), Error);
  EXPECT_FALSE(tree_.is_pending(1));
  EXPECT_TRUE(tree_.is_pending(2));
  tree_.add_user(1);
  EXPECT_EQ(tree_.num_users(1), 2);
  EXPECT_EQ(tree_.remove(2).page, 2) << "whoever computes it may give up";
  EXPECT_EQ(tree_.num_children(1), 0);
}

TEST_F(PrefixTreeTest, TellsTheNewestChildWhileItIsThere) {
  EXPECT_EQ(tree_.newest_child(root()), 0);
  EXPECT_FALSE(tree_.has_children(root()));
  const Place first = insert(root(), 1, 1);
  EXPECT_TRUE(tree_.has_children(root()));
  EXPECT_FALSE(tree_.has_children(first));
  EXPECT_EQ(tree_.newest_child(root()), 1);
  EXPECT_EQ(tree_.newest_child(first), 0);
  insert(first, 2, 2);
  insert(first, 7, 3);
  EXPECT_EQ(tree_.newest_child(first), 3);
  EXPECT_TRUE(std::ranges::equal(tree_.tokens_of(3), page_of(7)));
  EXPECT_EQ(tree_.newest_child(root("other")), 0) << "no other salt's text is shown";
  tree_.remove(2);
  EXPECT_EQ(tree_.newest_child(first), 3);
  tree_.remove(3);
  EXPECT_EQ(tree_.newest_child(first), 0);
}

TEST_F(PrefixTreeTest, RefusesToBreakThePathOfAUser) {
  const Place first = insert(root(), 1, 1);
  insert(first, 2, 2);
  EXPECT_THROW(tree_.remove(1), Error) << "it has a child";
  EXPECT_THROW(insert(root(), 1, 3), Error) << "a child with these tokens is there";
  EXPECT_THROW(insert(first, 9, 2), Error) << "the page is in the tree";
  EXPECT_THROW(tree_.insert(first, "", Ids{1, 2, 3}, 3, Computed::kYes, 0), Error) << "three tokens, a page has two";
  tree_.add_user(2);
  EXPECT_THROW(tree_.remove(2), Error) << "somebody else uses it";
  remove_users({2, 2, 1});
  EXPECT_THROW(tree_.remove_user(1), Error);
  EXPECT_THROW(insert(first, 9, 3), Error) << "nobody uses the parent";
  EXPECT_THROW(tree_.add_user(3), Error) << "it is not in the tree";
}

TEST_F(PrefixTreeTest, EvictsTheLeastRecentlyUsedLeavesFirst) {
  insert_chain(root(), {1, 2});
  insert_chain(root(), {3, 4});
  EXPECT_EQ(tree_.num_cached(), 0);
  EXPECT_THROW(tree_.evict(), Error) << "every page has users";
  remove_users({2, 1});
  remove_users({4, 3});
  EXPECT_EQ(tree_.num_cached(), 4);
  tree_.add_user(1);
  EXPECT_EQ(tree_.num_cached(), 3);
  remove_users({1});
  for (const int32_t page : {2, 4, 3, 1}) EXPECT_EQ(tree_.evict().page, page);
  EXPECT_EQ(tree_.num_cached(), 0);
  for (const int32_t page : {1, 2, 3, 4}) EXPECT_FALSE(tree_.contains(page));
}

TEST_F(PrefixTreeTest, APageThatIsUsedAgainMatchesItsNewTokensOnly) {
  insert_chain(root(), {1, 2});
  remove_users({2, 1});
  EXPECT_EQ(tree_.evict().page, 2);
  const Place first = tree_.place_of(1);
  tree_.add_user(1);
  insert(first, 9, 2);
  EXPECT_EQ(find(first, 2), 0);
  EXPECT_EQ(find(first, 9), 2);
  EXPECT_FALSE(tree_.lost_state(2));
  EXPECT_EQ(tree_.state_of(2), PrefixTree::kNoSlot);
}

TEST_F(PrefixTreeTest, RemembersWhatWasEvictedAndNothingElse) {
  insert_chain(root(), {1, 2});
  remove_users({2, 1});
  const Place first = tree_.place_of(1);
  EXPECT_FALSE(was_evicted(first, 2));
  tree_.evict();
  EXPECT_TRUE(was_evicted(first, 2));
  EXPECT_FALSE(was_evicted(root(), 1));
  EXPECT_FALSE(was_evicted(root(), 2));
  tree_.evict();
  EXPECT_TRUE(was_evicted(root(), 1)) << "the last page of a salt";
  EXPECT_FALSE(was_evicted(root("other"), 1));
  insert(root(), 5, 5);
  tree_.remove(5);
  EXPECT_FALSE(was_evicted(root(), 5)) << "its request took it back";
}

TEST_F(PrefixTreeTest, AStateStaysUntilItLeavesAloneOrWithItsPage) {
  insert_chain(root(), {1, 2});
  EXPECT_TRUE(tree_.attach_state(2, 0));
  EXPECT_FALSE(tree_.attach_state(2, 8)) << "it has one";
  EXPECT_EQ(tree_.state_of(2), 0);
  EXPECT_EQ(tree_.state_of(1), PrefixTree::kNoSlot);
  EXPECT_EQ(tree_.num_states(), 1);
  EXPECT_EQ(tree_.detach_state(2), 0);
  EXPECT_EQ(tree_.num_states(), 0);
  EXPECT_FALSE(tree_.lost_state(2)) << "it was taken, not evicted";
  EXPECT_THROW(tree_.detach_state(2), Error);
  EXPECT_THROW(tree_.use_state(2), Error);
  EXPECT_TRUE(tree_.attach_state(2, 9));
  remove_users({2, 1});
  const PrefixTree::Evicted evicted = tree_.evict();
  EXPECT_EQ(evicted.page, 2);
  EXPECT_EQ(evicted.state_slot, 9);
  EXPECT_EQ(tree_.evict().state_slot, PrefixTree::kNoSlot);
  EXPECT_EQ(tree_.num_states(), 0);
  EXPECT_EQ(tree_.evict_state(Which::kAny), std::nullopt);
}

TEST_F(PrefixTreeTest, StatesAreEvictedInTheOrderOfTheirLastUse) {
  for (const int32_t page : {1, 2, 3}) {
    insert(root(), page, page);
    tree_.attach_state(page, 10 + page);
  }
  tree_.use_state(1);
  EXPECT_EQ(tree_.evict_state(Which::kSuperseded), std::nullopt);
  EXPECT_EQ(tree_.evict_state(Which::kAny), 12);
  EXPECT_TRUE(tree_.lost_state(2));
  EXPECT_EQ(tree_.evict_state(Which::kAny), 13);
  EXPECT_EQ(tree_.evict_state(Which::kAny), 11);
  tree_.attach_state(2, 5);
  EXPECT_FALSE(tree_.lost_state(2));
}

TEST_F(PrefixTreeTest, AStateFurtherDownSupersedesTheOneAbove) {
  insert(root(), 9, 9);
  tree_.attach_state(9, 9);
  insert_chain(root(), {1, 2, 3, 4});
  for (const int32_t page : {1, 3, 4}) tree_.attach_state(page, page);
  for (const int32_t page : {1, 3}) {
    EXPECT_TRUE(tree_.any_superseded());
    EXPECT_EQ(tree_.evict_state(Which::kAny), page) << "although state 9 was used before it";
  }
  EXPECT_FALSE(tree_.any_superseded());
  EXPECT_EQ(tree_.evict_state(Which::kAny), 9);
}

TEST_F(PrefixTreeTest, AStateAtOrAboveABranchIsNotSuperseded) {
  const Place second = insert_chain(root(), {1, 2});
  insert_chain(second, {3, 4});
  for (const int32_t page : {1, 2, 4}) tree_.attach_state(page, page);
  insert(tree_.place_of(3), 5, 5);  // between the states of 2 and 4
  EXPECT_EQ(tree_.evict_state(Which::kSuperseded), 1);
  EXPECT_FALSE(tree_.any_superseded()) << "whatever goes on behind page 5 needs the state of page 2";
  tree_.detach_state(2);
  tree_.attach_state(3, 3);
  EXPECT_FALSE(tree_.any_superseded()) << "page 3 has two children";
}

TEST_F(PrefixTreeTest, ABranchMakesTheStateAboveLiveAgainWithItsAge) {
  insert_chain(root(), {1, 2, 3});
  tree_.attach_state(1, 1);
  insert(root(), 9, 9);
  tree_.attach_state(9, 9);
  tree_.attach_state(3, 3);
  EXPECT_TRUE(tree_.any_superseded());
  insert(tree_.place_of(2), 4, 4);
  EXPECT_FALSE(tree_.any_superseded());
  for (const int32_t slot : {1, 9, 3}) EXPECT_EQ(tree_.evict_state(Which::kAny), slot);
}

TEST_F(PrefixTreeTest, AStateIsLiveAgainWhenTheDeeperOneLeaves) {
  insert_chain(root(), {1, 2, 3});
  for (const int32_t page : {1, 2, 3}) tree_.attach_state(page, page);
  tree_.detach_state(2);
  EXPECT_EQ(tree_.num_states(), 2);
  EXPECT_TRUE(tree_.any_superseded()) << "the state of page 3 still supersedes that of page 1";
  remove_users({3});
  EXPECT_EQ(tree_.evict().state_slot, 3);
  EXPECT_FALSE(tree_.any_superseded());
  EXPECT_EQ(tree_.evict_state(Which::kAny), 1);
}

TEST_F(PrefixTreeTest, ABranchThatLeavesIsNoticedByTheNextStateBelow) {
  insert_chain(root(), {1, 2, 3});
  tree_.attach_state(1, 1);
  insert(tree_.place_of(2), 9, 9);
  tree_.attach_state(3, 3);
  tree_.remove(9);
  EXPECT_FALSE(tree_.any_superseded());
  insert(tree_.place_of(3), 4, 4);
  tree_.attach_state(4, 4);
  EXPECT_EQ(tree_.evict_state(Which::kSuperseded), 3);
  tree_.detach_state(4);
  tree_.attach_state(4, 4);
  EXPECT_EQ(tree_.evict_state(Which::kSuperseded), 1);
}

// Weak hashes confuse pages that differ in one token, in order, or by small steps.
TEST(PrefixTree, SimilarPagesHaveDifferentKeysThatSpread) {
  constexpr int32_t kPages = 1 << 16;
  const std::vector<std::pair<const char*, Ids (*)(int32_t)>> kinds = {
      {"one token, last", [](int32_t i) { return Ids{0, 0, 0, 0, 0, 0, 0, i}; }},
      {"one token, first", [](int32_t i) { return Ids{i, 0, 0, 0, 0, 0, 0, 0}; }},
      {"large steps", [](int32_t i) { return Ids{0, 0, i << 15, 0, 0, 0, 0, 0}; }},
      {"two tokens, equal sum", [](int32_t i) { return Ids{5, 5, i, kPages - i, 5, 5, 5, 5}; }},
      {"two tokens, equal", [](int32_t i) { return Ids{i, 1, 1, 1, i, 1, 1, 1}; }},
      {"two tokens, apart", [](int32_t i) { return Ids{i % 256, 0, 0, 0, 0, 0, 0, i / 256}; }},
      {"a permutation of eight",
       [](int32_t i) {
         Ids ids;
         for (int32_t left = 8, rest = i % 40320; left > 0; rest /= left--) {
           Ids unused;
           for (int32_t id = 0; id < 8; ++id)
             if (std::ranges::find(ids, id) == ids.end()) unused.push_back(id);
           ids.push_back(unused[static_cast<size_t>(rest % left)]);
         }
         ids[0] += i / 40320 * 8;
         return ids;
       }},
      {"two values", [](int32_t i) {
         Ids ids(8);
         for (int32_t bit = 0; bit < 16; bit += 2) ids[static_cast<size_t>(bit / 2)] = i >> bit & 3;
         return ids;
       }}};
  for (const auto& [name, ids_of] : kinds) {
    PrefixTree tree(kPages, 8);
    std::set<uint64_t> keys, low_bits;
    for (int32_t i = 0; i < kPages; ++i) {
      const uint64_t key = tree.insert(tree.root_of(""), "", ids_of(i), i + 1, Computed::kYes, 0).key;
      keys.insert(key);
      low_bits.insert(key % kPages);
    }
    EXPECT_EQ(keys.size(), static_cast<size_t>(kPages)) << name;
    // kPages balls in kPages urns fill 41,427 of them, with a standard deviation of 80.
    EXPECT_NEAR(static_cast<double>(low_bits.size()), 41427, 480) << name;
  }
}

// A model of PrefixTree: prefixes in a map, and searches over all of it.
struct ModelNode {
  int32_t page = 0, users = 0, owner = 0;
  bool pending = false, lost_state = false;
  int32_t slot = PrefixTree::kNoSlot;
  int64_t freed_at = 0, state_used_at = 0;
  std::optional<Ids> superseded_by;  // prefix, of the same salt
  bool has_state() const { return slot != PrefixTree::kNoSlot; }
};

struct Prefix {
  std::string salt;
  Ids tokens;
  auto operator<=>(const Prefix&) const = default;
};

struct Request {
  Prefix text{};  // of `pages`
  Ids pages{};
  size_t num_computed = 0;
};

// Random requests that share, compute, evict and give up pages, as the scheduler would. Each step is one operation;
// after it the tree and the model agree in everything that the tree tells.
class RandomUse {
 public:
  explicit RandomUse(uint64_t seed) : random_(seed) {
    for (int32_t page = 1; page <= kPages; ++page) free_.push_back(page);
    for (int32_t slot = 0; slot < kSlots; ++slot) free_slots_.push_back(slot);
  }

  void step() {
    ++now_;
    switch (random_.below(20)) {
      case 0:
      case 1: return begin();
      case 2: return give_up();
      case 3: return evict();
      case 4: return use_state();
      case 5: return detach_state();
      case 6: return evict_state();
      case 7:
      case 8: return compute();
      case 9:
      case 10:
      case 11: return attach_state();
      default: return extend();
    }
  }

  void check() {
    int32_t cached = 0, states = 0, superseded = 0;
    std::set<std::string> salts;
    std::set<int32_t> pages;
    for (const auto& [prefix, node] : model_) {
      check_node(prefix, node);
      cached += node.users == 0 ? 1 : 0;
      states += node.has_state() ? 1 : 0;
      superseded += node.superseded_by ? 1 : 0;
      salts.insert(prefix.salt);
      pages.insert(node.page);
    }
    EXPECT_EQ(tree_.num_cached(), cached);
    EXPECT_EQ(tree_.num_states(), states);
    EXPECT_EQ(tree_.any_superseded(), superseded > 0);
    EXPECT_EQ(tree_.num_roots(), salts.size());
    for (int32_t page = 1; page <= kPages; ++page) EXPECT_EQ(tree_.contains(page), pages.contains(page)) << page;
    check_absent();
    check_path();
  }

  // Events, to show that the cases under test happen.
  int64_t evictions = 0, branches_that_freed = 0, superseded_evictions = 0, salts_forgotten = 0, waits = 0;

 private:
  static constexpr int32_t kPages = 24, kSlots = 9, kPageSize = 2, kMostPages = 6;

  const std::string& any_salt() { return kSalts[static_cast<size_t>(random_.below(std::ssize(kSalts)))]; }
  // One page in two is the same, so that texts share long beginnings.
  Ids random_page() {
    const auto number = static_cast<int32_t>(std::max<int64_t>(random_.below(7) - 3, 0));
    return {number / 2, number % 2};
  }
  static Ids last_page(const Ids& tokens) { return {tokens.end() - kPageSize, tokens.end()}; }
  static Prefix parent_of(Prefix prefix) {
    prefix.tokens.resize(prefix.tokens.size() - kPageSize);
    return prefix;
  }
  static bool is_above(const Ids& above, const Ids& tokens) {
    return above.size() < tokens.size() && std::equal(above.begin(), above.end(), tokens.begin());
  }
  Place place_of(const Prefix& prefix) const {
    return prefix.tokens.empty() ? tree_.root_of(prefix.salt) : tree_.place_of(model_.at(prefix).page);
  }
  int32_t num_children(const Prefix& prefix) const {
    return static_cast<int32_t>(std::ranges::count_if(model_, [&](const auto& entry) {
      return entry.first.salt == prefix.salt && entry.first.tokens.size() == prefix.tokens.size() + kPageSize &&
             is_above(prefix.tokens, entry.first.tokens);
    }));
  }
  // Nothing branches off at `above` or between it and `below`.
  bool is_only_way(const std::string& salt, const Ids& above, const Ids& below) const {
    for (Prefix at{salt, below}; at.tokens.size() > above.size();) {
      at = parent_of(at);
      if (num_children(at) != 1) return false;
    }
    return true;
  }

  void check_node(const Prefix& prefix, const ModelNode& node) const {
    const Prefix parent = parent_of(prefix);
    EXPECT_EQ(tree_.find(place_of(parent), last_page(prefix.tokens)), node.page);
    EXPECT_EQ(tree_.num_users(node.page), node.users);
    EXPECT_EQ(tree_.is_pending(node.page), node.pending);
    EXPECT_TRUE(!node.pending || tree_.owner(node.page) == node.owner);
    EXPECT_EQ(tree_.state_of(node.page), node.slot);
    EXPECT_EQ(tree_.lost_state(node.page), node.lost_state);
    EXPECT_EQ(tree_.num_children(node.page), num_children(prefix));
    EXPECT_TRUE(std::ranges::equal(tree_.tokens_of(node.page), last_page(prefix.tokens)));
    EXPECT_TRUE(parent.tokens.empty() || node.users <= model_.at(parent).users);
    if (!node.superseded_by) return;
    EXPECT_TRUE(is_above(prefix.tokens, *node.superseded_by));
    EXPECT_TRUE(is_only_way(prefix.salt, prefix.tokens, *node.superseded_by));
    for (Prefix at{prefix.salt, *node.superseded_by}; at != prefix; at = parent_of(at))
      EXPECT_EQ(model_.at(at).has_state(), at.tokens == *node.superseded_by) << "not the nearest one below";
  }

  // The path of a random text, as far as it is known.
  void check_path() {
    const std::string& salt = any_salt();
    Ids text, pages;
    for (int64_t most = random_.below(kMostPages + 1); most > 0; --most) {
      const Ids page = random_page();
      text.insert(text.end(), page.begin(), page.end());
    }
    const auto begin = static_cast<size_t>(random_.below(2)) * kPageSize;
    const Prefix first{salt, {text.begin(), text.begin() + static_cast<std::ptrdiff_t>(std::min(begin, text.size()))}};
    if (!first.tokens.empty() && !model_.contains(first)) return;
    for (Prefix at = first; at.tokens.size() < text.size();) {
      at.tokens.assign(text.begin(), text.begin() + std::ssize(at.tokens) + kPageSize);
      if (!model_.contains(at)) break;
      pages.push_back(model_.at(at).page);
    }
    if (random_.below(2) == 0) text.push_back(0);  // a token of no whole page
    EXPECT_EQ(tree_.find_path(place_of(first), std::span(text).subspan(first.tokens.size())), pages);
  }

  void check_absent() const {
    for (const std::string& salt : kSalts) {
      for (const int32_t a : {0, 1}) {
        for (const int32_t b : {0, 1}) {
          Prefix prefix{salt, {}};
          while (true) {  // down the path of this page again and again
            Prefix next = prefix;
            next.tokens.insert(next.tokens.end(), {a, b});
            const Place at = place_of(prefix);
            EXPECT_TRUE(ever_evicted_.contains(next) || !tree_.was_evicted(at, Ids{a, b}));
            if (!model_.contains(next)) {
              EXPECT_EQ(tree_.find(at, Ids{a, b}), 0);
              break;
            }
            prefix = next;
          }
        }
      }
    }
  }

  void begin() {
    if (requests_.size() >= 5) return;
    Request request{.text = {any_salt(), {}}};
    for (int64_t most = random_.below(kMostPages); most > 0; --most) {
      Prefix next = request.text;
      const Ids page = random_page();
      next.tokens.insert(next.tokens.end(), page.begin(), page.end());
      const auto found = model_.find(next);
      const int32_t id = tree_.find(place_of(request.text), page);
      ASSERT_EQ(id, found == model_.end() ? 0 : found->second.page);
      if (id == 0) break;
      if (found->second.pending) {
        ++waits;
        break;
      }
      tree_.add_user(id);
      ++found->second.users;
      request.text = next;
      request.pages.push_back(id);
      ++request.num_computed;
    }
    requests_.push_back(std::move(request));
  }

  Request* any_request() {
    return requests_.empty() ? nullptr : &requests_[static_cast<size_t>(random_.below(std::ssize(requests_)))];
  }

  void extend() {
    Request* request = any_request();
    if (request == nullptr || request->pages.size() >= kMostPages) return;
    Prefix next = request->text;
    const Ids page = random_page();
    next.tokens.insert(next.tokens.end(), page.begin(), page.end());
    if (model_.contains(next)) return;
    const Place at = place_of(request->text);  // of a root it may be old after the eviction
    if (free_.empty()) evict();
    if (free_.empty()) return;
    const int32_t id = free_.back();
    free_.pop_back();
    const bool pending = request->num_computed < request->pages.size() || random_.below(2) == 0;
    const Place place = tree_.insert(at, next.salt, page, id, pending ? Computed::kNo : Computed::kYes, id + 100);
    EXPECT_EQ(place.page, id);
    EXPECT_EQ(place.key, tree_.place_of(id).key);
    EXPECT_EQ(place.root, tree_.place_of(id).root);
    model_[next] = {.page = id, .users = 1, .owner = id + 100, .pending = pending, .superseded_by = {}};
    EXPECT_EQ(tree_.newest_child(place_of(request->text)), id);
    if (num_children(request->text) == 2) branch_off(request->text);
    request->text = next;
    request->pages.push_back(id);
    if (!pending) ++request->num_computed;
  }

  void branch_off(const Prefix& at) {
    for (auto& [prefix, node] : model_) {
      if (!node.superseded_by || prefix.salt != at.salt) continue;
      const bool is_between = (prefix.tokens == at.tokens || is_above(prefix.tokens, at.tokens)) &&
                              is_above(at.tokens, *node.superseded_by);
      if (!is_between) continue;
      node.superseded_by.reset();
      ++branches_that_freed;
    }
  }

  void compute() {
    Request* request = any_request();
    if (request == nullptr || request->num_computed == request->pages.size()) return;
    const int32_t page = request->pages[request->num_computed++];
    tree_.set_computed(page);
    for (auto& [prefix, node] : model_)
      if (node.page == page) node.pending = false;
  }

  // Gives back the deepest pages of a request: all of them more often than not.
  void give_up() {
    Request* request = any_request();
    if (request == nullptr) return;
    const size_t keep = random_.below(2) == 0 ? 0 : static_cast<size_t>(random_.below(std::ssize(request->pages) + 1));
    while (request->pages.size() > keep) {
      ModelNode& node = model_.at(request->text);
      ++now_;
      const bool may_leave = node.users == 1 && num_children(request->text) == 0;
      if (node.pending || (may_leave && random_.below(3) == 0)) {
        leave(request->text, tree_.remove(node.page));
      } else {
        tree_.remove_user(node.page);
        if (--node.users == 0) node.freed_at = now_;
      }
      request->text = parent_of(request->text);
      request->pages.pop_back();
    }
    request->num_computed = std::min(request->num_computed, keep);
    if (keep == 0) requests_.erase(requests_.begin() + (request - requests_.data()));
  }

  void leave(const Prefix& prefix, const PrefixTree::Evicted& evicted) {
    const ModelNode node = model_.at(prefix);
    EXPECT_EQ(evicted.page, node.page);
    EXPECT_EQ(evicted.state_slot, node.slot);
    EXPECT_EQ(num_children(prefix), 0);
    const int32_t newest = tree_.newest_child(place_of(parent_of(prefix)));
    EXPECT_NE(newest, node.page);
    EXPECT_TRUE(newest == 0 || tree_.contains(newest));
    if (node.has_state()) drop_state(prefix);
    model_.erase(prefix);
    free_.push_back(node.page);
    if (std::ranges::none_of(model_, [&](const auto& entry) { return entry.first.salt == prefix.salt; })) {
      EXPECT_EQ(tree_.root_of(prefix.salt).root, PrefixTree::kNoRoot);
      ++salts_forgotten;
    }
  }

  void evict() {
    const Prefix* oldest = nullptr;
    for (const auto& [prefix, node] : model_) {
      if (node.users == 0 && (oldest == nullptr || node.freed_at < model_.at(*oldest).freed_at)) oldest = &prefix;
    }
    if (oldest == nullptr) return;
    const Prefix prefix = *oldest;
    ever_evicted_.insert(prefix);
    leave(prefix, tree_.evict());
    EXPECT_TRUE(tree_.was_evicted(place_of(parent_of(prefix)), last_page(prefix.tokens)));
    ++evictions;
  }

  std::vector<Prefix> prefixes_where(const auto& holds) const {
    std::vector<Prefix> prefixes;
    for (const auto& [prefix, node] : model_)
      if (holds(node)) prefixes.push_back(prefix);
    return prefixes;
  }
  std::optional<Prefix> any_of(const std::vector<Prefix>& prefixes) {
    if (prefixes.empty()) return std::nullopt;
    return prefixes[static_cast<size_t>(random_.below(std::ssize(prefixes)))];
  }

  void attach_state() {
    const auto prefix = any_of(prefixes_where([](const ModelNode& node) { return !node.pending; }));
    if (!prefix || free_slots_.empty()) return;
    ModelNode& node = model_.at(*prefix);
    const bool fits = !node.has_state();
    ASSERT_EQ(tree_.attach_state(node.page, free_slots_.back()), fits);
    if (!fits) return;
    node.slot = free_slots_.back();
    free_slots_.pop_back();
    node.state_used_at = now_;
    node.lost_state = false;
    for (Prefix above = parent_of(*prefix); !above.tokens.empty(); above = parent_of(above)) {
      if (!model_.at(above).has_state()) continue;
      if (is_only_way(above.salt, above.tokens, prefix->tokens)) model_.at(above).superseded_by = prefix->tokens;
      break;
    }
  }

  void drop_state(const Prefix& dropped) {
    ModelNode& gone = model_.at(dropped);
    for (auto& [prefix, node] : model_)
      if (prefix.salt == dropped.salt && node.superseded_by == dropped.tokens) node.superseded_by = gone.superseded_by;
    free_slots_.push_back(gone.slot);
    gone.slot = PrefixTree::kNoSlot;
    gone.superseded_by.reset();
  }

  void use_state() {
    const auto prefix = any_of(prefixes_where([](const ModelNode& node) { return node.has_state(); }));
    if (!prefix) return;
    tree_.use_state(model_.at(*prefix).page);
    model_.at(*prefix).state_used_at = now_;
  }

  void detach_state() {
    const auto prefix = any_of(prefixes_where([](const ModelNode& node) { return node.has_state(); }));
    if (!prefix) return;
    ASSERT_EQ(tree_.detach_state(model_.at(*prefix).page), model_.at(*prefix).slot);
    drop_state(*prefix);
  }

  void evict_state() {
    const Which which = random_.below(2) == 0 ? Which::kSuperseded : Which::kAny;
    std::vector<Prefix> candidates =
        prefixes_where([](const ModelNode& node) { return node.superseded_by.has_value(); });
    const bool any_superseded = !candidates.empty();
    if (!any_superseded && which == Which::kAny)
      candidates = prefixes_where([](const ModelNode& node) { return node.has_state(); });
    if (candidates.empty()) {
      EXPECT_EQ(tree_.evict_state(which), std::nullopt);
      return;
    }
    const Prefix oldest = *std::ranges::min_element(
        candidates, {}, [&](const Prefix& prefix) { return model_.at(prefix).state_used_at; });
    ASSERT_EQ(tree_.evict_state(which), model_.at(oldest).slot);
    drop_state(oldest);
    model_.at(oldest).lost_state = true;
    if (any_superseded) ++superseded_evictions;
  }

  const std::vector<std::string> kSalts = {"", "a", "b"};
  Random random_;
  PrefixTree tree_{kPages, kPageSize};
  std::map<Prefix, ModelNode> model_;
  std::set<Prefix> ever_evicted_;
  std::vector<Request> requests_;
  Ids free_, free_slots_;
  int64_t now_ = 0;
};

TEST(PrefixTree, DoesAsAMapOfPrefixesUnderRandomUse) {
  int64_t evictions = 0, branches_that_freed = 0, superseded_evictions = 0, salts_forgotten = 0, waits = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    RandomUse use(seed);
    for (int32_t step = 0; step < 3000; ++step) {
      use.step();
      use.check();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << step;
    }
    evictions += use.evictions, branches_that_freed += use.branches_that_freed;
    superseded_evictions += use.superseded_evictions, salts_forgotten += use.salts_forgotten, waits += use.waits;
  }
  EXPECT_GE(evictions, 30);
  EXPECT_GE(branches_that_freed, 30);
  EXPECT_GE(superseded_evictions, 30);
  EXPECT_GE(salts_forgotten, 30);
  EXPECT_GE(waits, 30);
}

}  // namespace
}  // namespace headrace
