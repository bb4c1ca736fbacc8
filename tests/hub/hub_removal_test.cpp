#include "headrace/hub/hub_removal.h"

#include "headrace/hub/file_lock.h"
#include "headrace/hub/hub_cache.h"
#include "support/fake_root.h"
#include "support/refusal.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

class Removal : public testing_support::FakeRoot {
 protected:
  // Two snapshots: "old" and main's "new" share the blob of config.json.
  Removal() {
    blob("c", "{}");
    blob("w1", "old weights");
    blob("w2", "new weights, longer");
    link("old", "config.json", "c");
    link("old", "model.safetensors", "w1");
    link("new", "config.json", "c");
    link("new", "model.safetensors", "w2");
    write("models--org--a/refs/main", "new");
    write("models--org--a/refs/v1", "old");
    write("models--org--a/.no_exist/old/x.json", "");
    write("models--org--a/trees/old.json", "{}");
    write("models--org--other/refs/main", "new");
  }
  void blob(const std::string& name, const std::string& content) { write("models--org--a/blobs/" + name, content); }
  void link(const std::string& commit, const std::string& name, const std::string& blob_name) {
    const fs::path place = root_ / "models--org--a" / "snapshots" / commit / name;
    fs::create_directories(place.parent_path());
    fs::create_symlink("../../blobs/" + blob_name, place);
  }
  bool here(const std::string& path) const { return fs::exists(fs::symlink_status(root_ / path)); }
  // A blob whose content is in the shared store, as huggingface_hub 2 makes them.
  std::string share(const std::string& blob_path, const std::string& repository) {
    std::string content = "blobs/ee/" + std::string(64, 'e');
    write("blobs/.huggingface-shared-blobs", "1\n");
    write(content, "shared weights");
    std::ofstream(root_ / (content + ".refs"), std::ios::app) << repository << "/blobs/" << blob_path << "\n";
    fs::create_directories(root_ / repository / "blobs");
    fs::create_symlink("../../" + content, root_ / repository / "blobs" / blob_path);
    return content;
  }
};

TEST_F(Removal, OfASnapshotLeavesWhatAnotherOneUses) {
  const auto removal = plan_removal(root_, "org/a", "v1");
  ASSERT_TRUE(removal);
  EXPECT_EQ(removal->bytes, 11);  // "old weights"
  EXPECT_EQ(removal->commits, std::vector<std::string>{"old"});
  remove(*removal);
  for (const char* gone : {"snapshots/old", "blobs/w1", "refs/v1", ".no_exist/old", "trees/old.json"})
    EXPECT_FALSE(here(std::string("models--org--a/") + gone)) << gone;
  for (const char* left : {"snapshots/new/config.json", "blobs/w2", "blobs/c", "refs/main"})
    EXPECT_TRUE(here(std::string("models--org--a/") + left)) << left;
  EXPECT_TRUE(hub_snapshot(root_, "org/a"));
}

TEST_F(Removal, OfAModelTakesAllOfIt) {
  blob("half.incomplete", "12345");
  const auto removal = plan_removal(root_, "org/a", std::nullopt);
  ASSERT_TRUE(removal);
  EXPECT_EQ(removal->commits.size(), 2u);
  EXPECT_GE(removal->bytes, 2 + 11 + 19 + 5);
  remove(*removal);
  EXPECT_FALSE(here("models--org--a"));
  EXPECT_TRUE(here("models--org--other"));
}

TEST_F(Removal, OfTheLastSnapshotTakesAllOfIt) {
  remove(*plan_removal(root_, "org/a", "new"));
  remove(*plan_removal(root_, "org/a", "old"));
  EXPECT_FALSE(here("models--org--a"));
}

TEST_F(Removal, OfWhatIsNotThere) {
  EXPECT_FALSE(plan_removal(root_, "org/none", std::nullopt));
  EXPECT_FALSE(plan_removal(root_, "../x", std::nullopt));
  EXPECT_EQ(testing_support::refusal_of([this] { plan_removal(root_, "org/a", "v9"); }).code, ErrorCode::kModelFile);
}

TEST_F(Removal, FollowsNoLinkOutOfTheCache) {
  write("precious/weights", "keep me");
  link("old", "evil.json", "../../../precious/weights");
  fs::create_directory_symlink(root_ / "precious", root_ / "models--org--a" / "snapshots" / "old" / "folder");
  remove(*plan_removal(root_, "org/a", "old"));
  EXPECT_TRUE(here("precious/weights"));
  remove(*plan_removal(root_, "org/a", std::nullopt));
  EXPECT_TRUE(here("precious/weights"));
}

TEST_F(Removal, OfAModelThatIsBeingDownloadedIsRefused) {
  fs::create_directories(root_ / ".locks" / "models--org--a");
  const auto lock = FileLock::try_lock(root_ / ".locks" / "models--org--a" / "w1.lock");
  EXPECT_EQ(testing_support::refusal_of([this] { plan_removal(root_, "org/a", std::nullopt); }).code, ErrorCode::kIo);
}

TEST_F(Removal, SharedContentGoesWithItsLastLink) {
  const std::string content = share("s", "models--org--a");
  share("s", "models--org--other");
  link("new", "shared.safetensors", "s");
  remove(*plan_removal(root_, "org/a", std::nullopt));
  EXPECT_TRUE(here(content));
  const auto last = plan_removal(root_, "org/other", std::nullopt);
  EXPECT_GE(last->bytes, 14);  // "shared weights"
  remove(*last);
  EXPECT_FALSE(here(content));
  EXPECT_FALSE(here(content + ".refs"));
}

TEST_F(Removal, SharedContentWithoutAListStays) {
  const std::string content = share("s", "models--org--a");
  fs::remove(root_ / (content + ".refs"));
  remove(*plan_removal(root_, "org/a", std::nullopt));
  EXPECT_TRUE(here(content));
}

}  // namespace
}  // namespace headrace
