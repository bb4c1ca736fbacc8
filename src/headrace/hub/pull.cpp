#include "headrace/hub/pull.h"

#include <algorithm>
#include <array>
#include <system_error>

#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

// Files that Hugging Face's tools look for in every model.
constexpr std::array kOptionalFiles = {"added_tokens.json",     "chat_template.jinja",     "generation_config.json",
                                       "processor_config.json", "special_tokens_map.json", "tokenizer.json",
                                       "tokenizer_config.json"};

// The optional files that the repository does not have.
std::vector<std::string> absent_files(const std::vector<HubFile>& files) {
  std::vector<std::string> absent;
  for (const char* name : kOptionalFiles) {
    if (std::ranges::find(files, name, &HubFile::name) == files.end()) absent.emplace_back(name);
  }
  return absent;
}

// The folder may not exist yet: its disk is that of the next one above it.
void require_room(fs::path folder, const PullPlan& plan) {
  std::error_code error;
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  const fs::space_info space = fs::space(folder.empty() ? "." : folder, error);
  if (error) return;  // writing says why
  HR_REQUIRE(space.available >= static_cast<uintmax_t>(plan.missing_bytes), ErrorCode::kIo, plan.name.repository,
             ": needs ", human_bytes(plan.missing_bytes), " more, and ", folder.string(), " has ",
             human_bytes(space.available), " free; headrace rm removes a model, and HF_HUB_CACHE names another folder");
}

}  // namespace

PullPlan plan_pull(const HubClient& client, const fs::path& cache, const HubName& name) {
  const HubStore store(cache, name.repository);
  const HubListing listing = client.list(name);
  PullPlan plan{.name = name, .commit = listing.commit, .files = model_files(listing, name)};
  for (HubFile& file : plan.files) {
    if (!is_checkable(file)) file = client.describe(name, plan.commit, file.name);
    plan.bytes += file.size;
    if (!store.has(file, plan.commit)) plan.missing_bytes += file.size - store.bytes_left_before(file);
  }
  return plan;
}

fs::path pull(const HubClient& client, const fs::path& cache, const PullPlan& plan, const DownloadCallback& progress) {
  const HubStore store(cache, plan.name.repository);
  require_room(store.folder(), plan);
  download(client, store, plan.name, plan.commit, plan.files, progress);
  store.link(plan.commit, plan.files);
  if (plan.name.gguf.empty()) store.note_absent(plan.commit, absent_files(plan.files));
  store.set_reference(plan.name.revision, plan.commit);
  const fs::path snapshot = store.snapshot(plan.commit);
  return plan.name.gguf.empty() ? snapshot : snapshot / plan.files.front().name;
}

}  // namespace headrace
