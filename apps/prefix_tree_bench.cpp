#include "prefix_tree_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/cache/prefix_tree.h"
#include "headrace/core/error.h"
#include "output.h"
#include "thread_cpu_time.h"

namespace headrace::app {
namespace {

constexpr int32_t kTextLen = 8192, kSharedLen = 4096, kVocabSize = 150'000;
constexpr int32_t kTextsPerBeginning = 8;
constexpr int32_t kTextsMeasured = 201;
constexpr int32_t kGoalPages = 1'000'000;
constexpr double kGoalUs = 1;

// A tree that is full of cached texts. kTextsPerBeginning of them have the same first kSharedLen tokens. A text's pages
// lie anywhere, as they do after many evictions.
class FullTree {
 public:
  FullTree(int32_t num_pages, int32_t page_size)
      : page_size_(page_size), tree_(num_pages, page_size), free_(static_cast<size_t>(num_pages)) {
    std::iota(free_.begin(), free_.end(), 1);
    std::ranges::shuffle(free_, random_);
    while (!free_.empty()) {
      const std::vector<int32_t> text = text_of(num_texts_++);
      std::vector<int32_t> pages = match(text);
      insert(text, pages);
      give_back(pages);
    }
  }

  // Microseconds a page to match a cached text, any of them alike.
  double match_us() {
    const int32_t complete = num_texts_ - 1;  // the last one may be cut
    const std::vector<int32_t> text =
        text_of(complete == 0 ? 0 : static_cast<int32_t>(random_() % static_cast<uint64_t>(complete)));
    std::vector<int32_t> pages;
    const double microseconds = cpu_microseconds_of([&] { pages = match(text); });
    check(pages.size(), pages_of(text));
    give_back(pages);
    return microseconds / static_cast<double>(pages.size());
  }

  struct Replaced {
    double insert_us = 0, evict_us = 0;
  };
  // Microseconds a page of a new text in place of the least recently used ones.
  Replaced replace() {
    const std::vector<int32_t> text = text_of(num_texts_++);
    std::vector<int32_t> pages = match(text);
    const auto added = static_cast<size_t>(std::min<int64_t>(pages_of(text) - std::ssize(pages), tree_.num_cached()));
    const double evict_us = cpu_microseconds_of([&] {
      for (size_t i = 0; i < added; ++i) free_.push_back(tree_.evict().page);
    });
    const size_t matched = pages.size();
    double insert_us = cpu_microseconds_of([&] { insert(text, pages); });
    check(pages.size(), static_cast<int64_t>(matched + added));
    const std::vector<int32_t> own(pages.begin() + static_cast<std::ptrdiff_t>(matched), pages.end());
    insert_us += cpu_microseconds_of([&] { give_back(own); });
    pages.resize(matched);
    give_back(pages);
    return {insert_us / static_cast<double>(added), evict_us / static_cast<double>(added)};
  }

 private:
  static void check(size_t pages, int64_t expected) {
    HR_REQUIRE(std::cmp_equal(pages, expected), ErrorCode::kInternal, "bench engine: the prefix tree has ", pages,
               " pages of a text, expected ", expected);
  }
  int64_t pages_of(std::span<const int32_t> text) const { return std::ssize(text) / page_size_; }

  static std::vector<int32_t> text_of(int32_t id) {
    std::vector<int32_t> text(kTextLen);
    const auto draw = [&](size_t begin, size_t end, uint64_t seed) {
      std::mt19937_64 random(seed);
      for (size_t i = begin; i < end; ++i) text[i] = static_cast<int32_t>(random() % uint64_t{kVocabSize});
    };
    draw(0, kSharedLen, static_cast<uint64_t>(id / kTextsPerBeginning) * 2 + 1);
    draw(kSharedLen, kTextLen, static_cast<uint64_t>(id) * 2 + 2);
    return text;
  }

  std::span<const int32_t> page_at(std::span<const int32_t> text, size_t i) const {
    return text.subspan(i * static_cast<size_t>(page_size_), static_cast<size_t>(page_size_));
  }

  std::vector<int32_t> match(std::span<const int32_t> text) {
    std::vector<int32_t> pages = tree_.find_path(tree_.root_of(""), text);
    for (const int32_t page : pages) tree_.add_user(page);
    return pages;
  }

  // Adds the text's next pages, as many as are free.
  void insert(std::span<const int32_t> text, std::vector<int32_t>& pages) {
    PrefixTree::Place place = pages.empty() ? tree_.root_of("") : tree_.place_of(pages.back());
    while (std::ssize(pages) < pages_of(text) && !free_.empty()) {
      const int32_t page = free_.back();
      free_.pop_back();
      place = tree_.insert(place, "", page_at(text, pages.size()), page, PrefixTree::Computed::kYes, 0);
      pages.push_back(page);
    }
  }

  void give_back(std::span<const int32_t> pages) {
    for (size_t i = pages.size(); i-- > 0;) tree_.remove_user(pages[i]);
  }

  int32_t page_size_;
  PrefixTree tree_;
  std::vector<int32_t> free_;
  std::mt19937_64 random_{1};
  int32_t num_texts_ = 0;
};

void bench(int32_t num_pages, int32_t page_size) {
  FullTree tree(num_pages, page_size);
  std::vector<double> match, insert, evict;
  for (int32_t i = 0; i < kTextsMeasured; ++i) match.push_back(tree.match_us());
  for (int32_t i = 0; i < kTextsMeasured; ++i) {
    const FullTree::Replaced replaced = tree.replace();
    insert.push_back(replaced.insert_us);
    evict.push_back(replaced.evict_us);
  }
  const double match_us = median(match), insert_us = median(insert), evict_us = median(evict);
  write_out(fmt::format(
      "{{\"name\": \"engine prefix tree page among {} cached pages of {} tokens cpu\", \"match_us\": {:.3f}, "
      "\"insert_us\": {:.3f}, \"evict_us\": {:.3f}, \"median_us\": {:.3f}, \"goal_us\": {}}}\n",
      num_pages, page_size, match_us, insert_us, evict_us, match_us + insert_us + evict_us,
      num_pages == kGoalPages ? fmt::format("{:g}", kGoalUs) : "null"));
}

}  // namespace

void bench_prefix_tree() {
  for (const int32_t page_size : {16, 64}) {
    for (const int32_t num_pages : {1'000, 10'000, 100'000, kGoalPages}) bench(num_pages, page_size);
  }
}

}  // namespace headrace::app
