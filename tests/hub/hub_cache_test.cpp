#include "headrace/hub/hub_cache.h"

#include <string>

#include "support/fake_root.h"
#include "support/refusal.h"

namespace headrace {
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

TEST_F(HubCache, ABranchATagOrACommitOfItsOwn) {
  write("models--org--a.model-1/refs/v2", "4567");
  write("models--org--a.model-1/refs/refs/pr/1", "4567");
  write("models--org--a.model-1/snapshots/4567/config.json", "{}");
  const auto second = root_ / "models--org--a.model-1" / "snapshots" / "4567";
  for (const char* revision : {"v2", "4567", "refs/pr/1"}) {
    EXPECT_EQ(hub_snapshot(root_, "org/a.model-1", revision), second) << revision;
  }
  const auto refusal = testing_support::refusal_of([this] { hub_snapshot(root_, "org/a.model-1", "v3"); });
  EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
  EXPECT_EQ(refusal.sentence, "org/a.model-1: the cache holds no revision 'v3'; those that it holds are in " +
                                  (root_ / "models--org--a.model-1" / "snapshots").string());
  EXPECT_EQ(hub_snapshot(root_, "org/a.model-1", "../v2"), std::nullopt);
}

TEST_F(HubCache, RepositoriesWithoutAnOwner) {
  write("models--gpt2/refs/main", "ab");
  write("models--gpt2/snapshots/ab/config.json", "{}");
  EXPECT_EQ(hub_snapshot(root_, "gpt2"), root_ / "models--gpt2" / "snapshots" / "ab");
  EXPECT_EQ(hub_repository("models--gpt2"), "gpt2");
}

TEST_F(HubCache, ListsWhatItHoldsByTheNamesThatAreTaken) {
  write("models--org--pinned/snapshots/abc/config.json", "{}");
  write("datasets--org--text/refs/main", "x");
  write("models--org--gone/refs/main", "ffff");
  std::vector<std::string> names;
  for (const HubModel& model : hub_models(root_)) names.push_back(model.name);
  EXPECT_EQ(names, (std::vector<std::string>{"org/a.model-1", "org/pinned@abc"}));
  EXPECT_TRUE(hub_models(root_ / "nowhere").empty());
}

TEST(HubRepository, IsNamedAsItsFolder) {
  EXPECT_EQ(hub_repository("models--Qwen--Qwen3-0.6B"), "Qwen/Qwen3-0.6B");
  EXPECT_EQ(hub_repository("models--"), std::nullopt);
  EXPECT_EQ(hub_repository("datasets--a--b"), std::nullopt);
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
}  // namespace headrace
