#include "headrace/cache/page_allocator.h"

#include <gtest/gtest.h>

#include "headrace/core/error.h"

namespace headrace {
namespace {

using Ids = std::vector<int32_t>;

TEST(PageAllocator, APageIsFreeWhenItsLastUserHasGone) {
  PageAllocator users(3);
  const Ids pages = *users.alloc(2);
  users.add_request(Ids{pages[0]});
  users.remove_request(pages);
  EXPECT_EQ(users.num_free(), 2);
  users.remove_request(Ids{pages[0]});
  EXPECT_EQ(users.num_free(), 3);
  EXPECT_FALSE(users.alloc(4));
}

TEST(PageAllocator, APageIsIdleWhileTextsAloneUseIt) {
  PageAllocator users(3);
  const Ids pages = *users.alloc(2);
  users.add_text(pages);
  EXPECT_EQ(users.num_idle(), 0);
  users.add_text(Ids{pages[0]});
  users.remove_request(pages);
  EXPECT_EQ(users.num_idle(), 2);
  EXPECT_EQ(users.num_idle(Ids{pages[1]}), 1);
  users.add_request(Ids{pages[1]});
  EXPECT_EQ(users.num_idle(), 1);
  users.remove_text(pages);
  EXPECT_EQ(users.num_idle(), 1) << "another text holds it";
  EXPECT_EQ(users.num_free(), 1);
  users.remove_text(Ids{pages[0]});
  users.remove_request(Ids{pages[1]});
  EXPECT_EQ(users.num_free(), 3);
}

TEST(PageAllocator, APageThatNobodyUsesIsABug) {
  PageAllocator users(3);
  EXPECT_THROW(users.remove_request(Ids{2}), Error);
  const Ids pages = *users.alloc(1);
  EXPECT_THROW(users.remove_text(pages), Error);
}

}  // namespace
}  // namespace headrace
