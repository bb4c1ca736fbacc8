#include "apps/hub_cache.h"

#include "support/fake_root.h"
#include "support/refusal.h"

namespace headrace::app {
namespace {

class HubCache : public testing_support::FakeRoot {
 protected:
  HubCache() {
    write("models--org--a.model-1/refs/main", "0123abcd");
    write("models--org--a.model-1/snapshots/0123abcd/config.json", "{}");
  }
};

TEST_F(HubCache, ARepositorysMainRevision) {
  EXPECT_EQ(hub_snapshot(root_, "org/a.model-1"), root_ / "models--org--a.model-1" / "snapshots" / "0123abcd");
}

TEST_F(HubCache, WhatIsNotThereIsAbsent) {
  EXPECT_EQ(hub_snapshot(root_, "org/another"), std::nullopt);
  EXPECT_EQ(hub_snapshot(root_ / "nowhere", "org/a.model-1"), std::nullopt);
  write("models--org--gone/refs/main", "ffff");
  EXPECT_EQ(hub_snapshot(root_, "org/gone"), std::nullopt) << "a revision whose files were removed";
}

// It was said not to be in the cache at all.
TEST_F(HubCache, ASnapshotIsNotMainBecauseItIsTheOnlyOne) {
  write("models--org--pinned/snapshots/abc/config.json", "{}");
  const auto refusal = testing_support::refusal_of([this] { hub_snapshot(root_, "org/pinned"); });
  const std::string folder = (root_ / "models--org--pinned").string();
  EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
  EXPECT_EQ(refusal.sentence, folder +
                                  "/refs/main: is missing, as after a download of one revision by its hash; give the " +
                                  "directory of a model in " + folder + "/snapshots");
}

TEST_F(HubCache, NoNameLeadsOutOfTheCache) {
  write("outside/config.json", "{}");
  write("models--org--evil/snapshots/x", "");
  write("models--org--evil/refs/main", "../../outside");
  for (const char* name : {"org/evil", "org", "/etc", "org/..", "../a.model-1", "org/a/b", "org/", "org/.hidden"}) {
    EXPECT_EQ(hub_snapshot(root_, name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace headrace::app
