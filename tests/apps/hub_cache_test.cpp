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
}

// Each was said not to be in the cache at all.
TEST_F(HubCache, AReferenceThatLeadsNowhereSaysWhatItIs) {
  const std::string folder = (root_ / "models--org--bad").string(), main = folder + "/refs/main";
  write("models--org--bad/snapshots/abc/config.json", "{}");
  const auto expect = [&](const std::string& fault) {
    const auto refusal = testing_support::refusal_of([this] { hub_snapshot(root_, "org/bad"); });
    EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
    EXPECT_EQ(refusal.sentence, main + ": " + fault +
                                    "; download the model again, or give the directory of a model in " + folder +
                                    "/snapshots");
  };
  write("models--org--bad/refs/main", "");
  expect("is empty, expected the hash of a snapshot");
  write("models--org--bad/refs/main", "ffff\n");
  expect("names the snapshot ffff, which is not there");
  write("models--org--bad/refs/main", "../\x1b");
  expect("holds no name of a folder, expected the hash of a snapshot");
  std::filesystem::remove(main);
  std::filesystem::create_directory(main);
  expect("is a directory, expected a file with the hash of a snapshot");
  std::filesystem::remove(main);
  std::filesystem::create_symlink("main", main);
  expect("cannot be read: Too many levels of symbolic links");
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
  EXPECT_NE(testing_support::refusal_of([this] {
              hub_snapshot(root_, "org/evil");
            }).sentence.find("holds no name of a folder"),
            std::string::npos);
  for (const char* name : {"org", "/etc", "org/..", "../a.model-1", "org/a/b", "org/", "org/.hidden"}) {
    EXPECT_EQ(hub_snapshot(root_, name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace headrace::app
