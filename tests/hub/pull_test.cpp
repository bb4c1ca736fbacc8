#include "headrace/hub/pull.h"

#include <sys/file.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "headrace/hub/file_lock.h"
#include "headrace/hub/hub_cache.h"
#include "hub/small_hub.h"
#include "support/fake_root.h"
#include "support/refusal.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using testing_support::refusal_of;
using testing_support::SmallHub;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Bytes that repeat nowhere near: a piece at a wrong place is another content.
std::string content_of(size_t size) {
  std::string content(size, '\0');
  uint32_t state = 1;
  for (char& c : content) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return content;
}

class Pull : public testing_support::FakeRoot {
 protected:
  Pull() {
    setenv("no_proxy", "*", 1);  // NOLINT(concurrency-mt-unsafe): the hub's threads read no variables
    commit_ = hub_.set_repository("org/a", files_);
  }

  fs::path pull_with(const HubSettings& settings, const HubName& name = {"org/a"}) {
    const HubClient client(settings);
    return pull(client, root_, plan_pull(client, root_, name), {});
  }
  fs::path pulled() { return pull_with(settings()); }
  HubSettings settings() const {
    return {.endpoint = hub_.endpoint(),
            .first_wait = std::chrono::milliseconds(5),
            .stall_time = std::chrono::seconds(1),
            .log = {}};
  }
  void expect_all_here() {
    const fs::path snapshot = root_ / "models--org--a" / "snapshots" / commit_;
    EXPECT_EQ(hub_snapshot(root_, "org/a"), snapshot);
    for (const auto& [name, file] : files_) {
      if (name == "README.md") continue;
      EXPECT_TRUE(text_of(snapshot / name) == file.content) << name;
    }
    EXPECT_FALSE(fs::exists(snapshot / "README.md"));
    for (const auto& entry : fs::directory_iterator(root_ / "models--org--a" / "blobs"))
      EXPECT_NE(entry.path().extension(), ".incomplete");
  }
  void put_fault(SmallHub::Fault fault) { hub_.add_fault(std::move(fault)); }

  SmallHub hub_;
  SmallHub::Files files_ = {{"README.md", {"about"}},
                            {"config.json", {"{}"}},
                            {"empty.json", {""}},
                            {"model.safetensors", {content_of(300000), true}},
                            {"tokenizer.json", {content_of(50000)}}};
  std::string commit_;
};

TEST_F(Pull, WritesTheLayoutOfHuggingFacesCache) {
  const fs::path snapshot = pulled(), folder = root_ / "models--org--a";
  expect_all_here();
  EXPECT_EQ(snapshot, folder / "snapshots" / commit_);
  EXPECT_EQ(text_of(folder / "refs" / "main"), commit_);
  const fs::path link = fs::read_symlink(snapshot / "model.safetensors");
  EXPECT_EQ(link.parent_path(), "../../blobs");
  EXPECT_EQ(link.filename().string().size(), 64u);
  EXPECT_EQ(fs::read_symlink(snapshot / "config.json"),
            "../../blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b");  // git's
  EXPECT_TRUE(fs::exists(root_ / ".locks" / "models--org--a" / "9e26dfeeb6e641a33dae4961196235bdb965b21b.lock"));
  EXPECT_TRUE(fs::exists(folder / ".no_exist" / commit_ / "generation_config.json"));
  EXPECT_FALSE(fs::exists(folder / ".no_exist" / commit_ / "tokenizer.json"));
}

TEST_F(Pull, FilesInFoldersLinkThroughThem) {
  files_["additional_chat_templates/tools.jinja"] = {"{{ 1 }}"};
  commit_ = hub_.set_repository("org/a", files_);
  const fs::path link = fs::read_symlink(pulled() / "additional_chat_templates" / "tools.jinja");
  EXPECT_EQ(link.parent_path(), "../../../blobs");
  expect_all_here();
}

// Beside a model in safetensors, whose files are not downloaded.
TEST_F(Pull, BringsOneModelInGguf) {
  files_["Q8_0/a-Q8_0-00001-of-00002.gguf"] = {content_of(3000), true};
  files_["Q8_0/a-Q8_0-00002-of-00002.gguf"] = {content_of(2000), true};
  files_["a-Q4_K_M.gguf"] = {content_of(1000), true};
  commit_ = hub_.set_repository("org/a", files_);
  const HubName four{.repository = "org/a", .gguf = "q4_k_m"}, eight{.repository = "org/a", .gguf = "Q8_0"};
  const fs::path snapshot = root_ / "models--org--a" / "snapshots" / commit_;
  EXPECT_EQ(pull_with(settings(), four), snapshot / "a-Q4_K_M.gguf");
  EXPECT_EQ(text_of(snapshot / "a-Q4_K_M.gguf"), content_of(1000));
  EXPECT_FALSE(fs::exists(snapshot / "config.json"));
  EXPECT_FALSE(fs::exists(root_ / "models--org--a" / ".no_exist")) << "the repository has a tokenizer.json";
  EXPECT_EQ(hub_model(root_, four), snapshot / "a-Q4_K_M.gguf");
  EXPECT_EQ(hub_model(root_, eight), std::nullopt);
  EXPECT_EQ(pull_with(settings(), eight), snapshot / "Q8_0" / "a-Q8_0-00001-of-00002.gguf");
  EXPECT_TRUE(fs::exists(snapshot / "Q8_0" / "a-Q8_0-00002-of-00002.gguf"));
  EXPECT_EQ(hub_model(root_, eight), snapshot / "Q8_0" / "a-Q8_0-00001-of-00002.gguf");
  const std::vector<GgufChoice> choices = gguf_choices_in(snapshot);
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(gguf_tag(choices, choices[0]), "Q4_K_M");
  EXPECT_EQ(gguf_tag(choices, choices[1]), "Q8_0");
  pulled();
  EXPECT_EQ(hub_model(root_, {"org/a"}), snapshot);
}

TEST_F(Pull, DownloadsNothingTwice) {
  pulled();
  const auto files = hub_.count("/resolve/");
  const HubClient client(settings());
  EXPECT_EQ(plan_pull(client, root_, {"org/a"}).missing_bytes, 0);
  pulled();
  EXPECT_EQ(hub_.count("/resolve/"), files);
}

TEST_F(Pull, SaysHowMuchIsMissing) {
  const HubClient client(settings());
  EXPECT_EQ(plan_pull(client, root_, {"org/a"}).missing_bytes, 350002);
  EXPECT_FALSE(fs::exists(root_));  // asking writes nothing
  pulled();
  files_["config.json"] = {"{ }"};
  hub_.set_repository("org/a", files_);
  EXPECT_EQ(plan_pull(client, root_, {"org/a"}).missing_bytes, 3);
}

TEST_F(Pull, AnotherRevisionHasItsOwnNote) {
  pull_with(settings(), {"org/a", "refs/pr/1"});
  EXPECT_EQ(text_of(root_ / "models--org--a" / "refs" / "refs" / "pr" / "1"), commit_);
  EXPECT_FALSE(fs::exists(root_ / "models--org--a" / "refs" / "main"));
  pull_with(settings(), {"org/a", commit_});
  EXPECT_FALSE(fs::exists(root_ / "models--org--a" / "refs" / commit_));
}

TEST_F(Pull, GoesOnBehindACutConnection) {
  put_fault({.path = "model.safetensors", .cut_after = 100000});
  put_fault({.path = "model.safetensors", .cut_after = 50000});
  pulled();
  expect_all_here();
  std::vector<std::string> ranges;
  for (const auto& seen : hub_.seen())
    if (seen.path.ends_with("model.safetensors")) ranges.push_back(seen.range);
  EXPECT_EQ(ranges, (std::vector<std::string>{"", "bytes=100000-", "bytes=150000-"}));
}

TEST_F(Pull, GoesOnBehindAConnectionThatStalls) {
  put_fault({.path = "model.safetensors", .stall_after = 64000});
  pulled();
  expect_all_here();
  EXPECT_EQ(hub_.count("model.safetensors"), 2);
}

TEST_F(Pull, GoesOnWhereAnEarlierProcessEnded) {
  put_fault({.path = "model.safetensors", .times = 100, .cut_after = 1000});
  HubSettings impatient = settings();
  impatient.tries = 1;
  const auto refusal = refusal_of([&] { pull_with(impatient); });
  EXPECT_EQ(refusal.code, ErrorCode::kIo);
  EXPECT_NE(refusal.sentence.find(
                "org/a: model.safetensors: the download does not go on: transfer closed with 299000 bytes remaining"),
            std::string::npos)
      << refusal.sentence;
  EXPECT_EQ(hub_snapshot(root_, "org/a"), std::nullopt);  // not before all is here
  SmallHub good;
  good.set_repository("org/a", files_);
  HubSettings other = settings();
  other.endpoint = good.endpoint();
  pull_with(other);
  expect_all_here();
  std::vector<std::string> ranges;
  for (const auto& seen : good.seen()) {
    if (seen.path.ends_with("model.safetensors")) ranges.push_back(seen.range);
  }
  EXPECT_EQ(ranges, std::vector<std::string>{"bytes=1000-"});
}

TEST_F(Pull, BeginsAgainWhereTheServerIgnoresTheRange) {
  put_fault({.path = "model.safetensors", .cut_after = 100000});
  put_fault({.path = "model.safetensors", .ignores_range = true});
  pulled();
  expect_all_here();
}

TEST_F(Pull, BeginsAgainWhereTheServerHasNoSuchRange) {
  put_fault({.path = "model.safetensors", .cut_after = 1000});
  put_fault({.path = "model.safetensors", .status = 416});
  pulled();
  expect_all_here();
}

TEST_F(Pull, BeginsAgainWhereWhatWasLeftIsNotTheFile) {
  const fs::path blobs = root_ / "models--org--a" / "blobs";
  const HubStore store(root_, "org/a");
  const HubClient client(settings());
  const PullPlan plan = plan_pull(client, root_, {"org/a"});
  fs::create_directories(blobs);
  for (const HubFile& file : plan.files) {  // longer than the file, as long, and shorter
    const size_t size = file.name == "config.json" ? 99 : file.name == "tokenizer.json" ? 50000 : 7;
    std::ofstream(store.incomplete(file)) << std::string(size, 'x');
  }
  pulled();
  expect_all_here();
}

TEST_F(Pull, ABlobOfAnotherSizeIsReplaced) {
  pulled();
  const fs::path blob = fs::canonical(root_ / "models--org--a" / "snapshots" / commit_ / "model.safetensors");
  fs::resize_file(blob, 17);
  pulled();
  expect_all_here();
}

TEST_F(Pull, WrongContentIsDownloadedOnceMoreAndThenRefused) {
  put_fault({.path = "tokenizer.json", .content = std::string(50000, 'x')});
  pulled();
  expect_all_here();
  fs::remove_all(root_);
  put_fault({.path = "tokenizer.json", .times = 2, .content = std::string(50000, 'x')});
  const auto refusal = refusal_of([this] { pulled(); });
  EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
  EXPECT_NE(refusal.sentence.find("org/a: tokenizer.json has the hash "), std::string::npos) << refusal.sentence;
  EXPECT_FALSE(fs::exists(root_ / "models--org--a" / "snapshots"));
}

TEST_F(Pull, AFileOfAnotherSizeIsRefused) {
  put_fault({.path = "tokenizer.json", .times = 2, .content = std::string(50001, 'x')});
  EXPECT_NE(refusal_of([this] { pulled(); }).sentence.find("is longer than the 50000 bytes that the hub stated"),
            std::string::npos);
  put_fault({.path = "tokenizer.json", .times = 100, .content = std::string(49999, 'x'), .no_length = true});
  const auto refusal = refusal_of([this] { pulled(); });
  EXPECT_FALSE(refusal.sentence.empty());
  EXPECT_EQ(hub_snapshot(root_, "org/a"), std::nullopt);
}

TEST_F(Pull, ABusyHubIsAskedAgain) {
  put_fault({.path = "/api/models", .status = 503});
  put_fault({.path = "/api/models", .status = 429, .headers = {{"Retry-After", "0"}}});
  put_fault({.path = "config.json", .times = 3, .status = 500});
  put_fault({.path = "model.safetensors", .times = 4, .status = 429, .headers = {{"Retry-After", "0"}}});
  pulled();
  expect_all_here();
  put_fault({.path = "/api/models", .times = 100, .status = 503});
  const auto refusal = refusal_of([this] { pulled(); });
  EXPECT_EQ(refusal.code, ErrorCode::kIo);
  EXPECT_NE(refusal.sentence.find(": answers with status 503; try again later"), std::string::npos) << refusal.sentence;
}

// As mirrors and proxies of companies are.
TEST_F(Pull, AHubThatListsNamesAloneIsAskedForEachFile) {
  hub_.list_names_alone();
  SmallHub elsewhere;
  elsewhere.set_repository("org/a", files_);
  hub_.redirect_weights_to(elsewhere.endpoint());
  const HubClient client(settings());
  EXPECT_EQ(plan_pull(client, root_, {"org/a"}).missing_bytes, 350002);
  pulled();
  expect_all_here();
  put_fault({.path = "config.json", .headers = {{"ETag", "\"v1\""}}});
  const auto refusal = refusal_of([this] { pulled(); });
  EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
  EXPECT_NE(refusal.sentence.find("does not say the size and the hash of config.json"), std::string::npos)
      << refusal.sentence;
}

TEST_F(Pull, SeveralFilesComeAtOnceAndNoMoreThanTheSettingsSay) {
  hub_.set_bytes_per_s(1000000);
  HubSettings two = settings();
  two.parallel = 2;
  pull_with(two);
  EXPECT_EQ(hub_.most_at_once(), 2);
  expect_all_here();
}

TEST_F(Pull, TheTokenStaysWithTheHub) {
  SmallHub elsewhere;
  elsewhere.set_repository("org/a", files_);
  hub_.redirect_weights_to(elsewhere.endpoint());
  hub_.set_gated("org/a", "hf_secret");
  HubSettings known = settings();
  known.token = "hf_secret";
  pull_with(known);
  expect_all_here();
  EXPECT_EQ(elsewhere.count("model.safetensors"), 1);
  for (const auto& seen : elsewhere.seen()) EXPECT_EQ(seen.authorization, "");
  for (const auto& seen : hub_.seen()) EXPECT_EQ(seen.authorization, "Bearer hf_secret");
}

TEST_F(Pull, ACutRedirectedDownloadGoesOnThere) {
  SmallHub elsewhere;
  elsewhere.set_repository("org/a", files_);
  elsewhere.add_fault({.path = "model.safetensors", .cut_after = 5000});
  hub_.redirect_weights_to(elsewhere.endpoint());
  pulled();
  expect_all_here();
  EXPECT_EQ(elsewhere.seen().back().range, "bytes=5000-");
}

TEST_F(Pull, ARedirectToAFileIsNotFollowed) {
  hub_.redirect_weights_to("file:///etc/passwd?");
  EXPECT_EQ(refusal_of([this] { pulled(); }).code, ErrorCode::kIo);
}

TEST_F(Pull, SaysWhatToDoAboutAGatedModel) {
  hub_.set_gated("org/a", "hf_secret");
  const auto refusal = refusal_of([this] { pulled(); });
  EXPECT_EQ(refusal.code, ErrorCode::kModelFile);
  EXPECT_EQ(refusal.sentence, "org/a: is gated: accept its terms at " + hub_.endpoint() +
                                  "/org/a, then set HF_TOKEN to a token of https://huggingface.co/settings/tokens");
  HubSettings other = settings();
  other.token = "hf_other";
  EXPECT_EQ(
      refusal_of([&] { pull_with(other); }).sentence,
      "org/a: is gated, and the token's account has no access: accept the terms at " + hub_.endpoint() + "/org/a");
}

TEST_F(Pull, SaysWhatTheHubLacks) {
  EXPECT_EQ(refusal_of([this] { pull_with(settings(), {"org/none"}); }).sentence,
            "org/none: " + hub_.endpoint() +
                " has no such model, or it is private: set HF_TOKEN to a token that may read it");
  EXPECT_EQ(refusal_of([this] {
              pull_with(settings(), {"org/a", "v9"});
            }).sentence,
            "org/a: has no revision 'v9' on " + hub_.endpoint());
}

TEST_F(Pull, SaysWhichFileOfTheListIsNotThere) {
  put_fault({.path = "config.json", .status = 404, .headers = {{"X-Error-Code", "EntryNotFound"}}});
  EXPECT_EQ(refusal_of([this] { pulled(); }).sentence,
            "org/a: the hub lists a file that it does not have: " + hub_.endpoint() + "/org/a/resolve/" + commit_ +
                "/config.json");
}

TEST_F(Pull, SaysThatTheHubCannotBeReached) {
  HubSettings nowhere = settings();
  {
    const SmallHub gone;
    nowhere.endpoint = gone.endpoint();
  }
  const auto refusal = refusal_of([&] { pull_with(nowhere); });
  EXPECT_EQ(refusal.code, ErrorCode::kIo);
  EXPECT_TRUE(refusal.sentence.starts_with(nowhere.endpoint.substr(7) + ": cannot be reached: ")) << refusal.sentence;
  nowhere.endpoint = "ftp://a";
  EXPECT_EQ(refusal_of([&] { pull_with(nowhere); }).code, ErrorCode::kInvalidArgument);
  HubSettings injected = settings();
  injected.token = "a\r\nX: 1";
  EXPECT_EQ(refusal_of([&] { pull_with(injected); }).code, ErrorCode::kInvalidArgument);
}

TEST_F(Pull, AFullDiskIsSeenBeforeADownload) {
  const HubClient client(settings());
  PullPlan plan = plan_pull(client, root_, {"org/a"});
  plan.missing_bytes = int64_t{1} << 60;
  const auto files = hub_.count("/resolve/");
  const auto refusal = refusal_of([&] { pull(client, root_, plan, {}); });
  EXPECT_EQ(refusal.code, ErrorCode::kIo);
  EXPECT_TRUE(refusal.sentence.starts_with("org/a: needs ")) << refusal.sentence;
  EXPECT_EQ(hub_.count("/resolve/"), files);
}

TEST_F(Pull, AFileThatCannotBeWrittenSaysWhy) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100000;
  setrlimit(RLIMIT_FSIZE, &small);
  const auto refusal = refusal_of([this] { pulled(); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(refusal.code, ErrorCode::kIo);
  EXPECT_NE(refusal.sentence.find(".incomplete: cannot be written: File too large"), std::string::npos)
      << refusal.sentence;
}

TEST_F(Pull, WaitsForAnotherProcessAndTakesItsFile) {
  const HubStore store(root_, "org/a");
  const HubClient client(settings());
  const PullPlan plan = plan_pull(client, root_, {"org/a"});
  store.create();
  const HubFile& weights = plan.files[2];
  ASSERT_EQ(weights.name, "model.safetensors");
  std::optional<FileLock> lock = FileLock::try_lock(store.lock_file(weights));
  ASSERT_TRUE(lock);
  int calls = 0;
  pull(client, root_, plan, [&](const DownloadProgress& now) {
    if (now.files < 3 || !lock) return;  // the others are here
    if (++calls < 3) return;
    std::ofstream(store.blob(weights), std::ios::binary) << files_["model.safetensors"].content;
    lock.reset();
  });
  expect_all_here();
  EXPECT_EQ(hub_.count("model.safetensors"), 0);
}

TEST_F(Pull, TwoFilesOfOneContentAreOneBlob) {
  files_["special_tokens_map.json"] = {"{}"};
  commit_ = hub_.set_repository("org/a", files_);
  pulled();
  expect_all_here();
}

TEST_F(Pull, ProgressGrowsToTheEndAndMayEndIt) {
  hub_.set_bytes_per_s(400000);
  const HubClient client(settings());
  const PullPlan plan = plan_pull(client, root_, {"org/a"});
  EXPECT_THROW(pull(client, root_, plan,
                    [](const DownloadProgress& now) {
                      if (now.bytes > 100000) throw 1;
                    }),
               int);
  hub_.set_bytes_per_s(0);
  DownloadProgress last;
  int64_t first = -1;
  pull(client, root_, plan, [&](const DownloadProgress& now) {
    if (first < 0) first = now.bytes;
    EXPECT_GE(now.bytes, last.bytes);
    last = now;
  });
  EXPECT_GT(first, 50000);  // what was left
  EXPECT_EQ(last.bytes, last.total);
  expect_all_here();
}

}  // namespace
}  // namespace headrace
