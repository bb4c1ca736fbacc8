// headrace rm: removes a model from Hugging Face's cache.
#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "commands.h"
#include "headrace/core/error.h"
#include "headrace/core/human_bytes.h"
#include "headrace/core/printable.h"
#include "headrace/hub/hub_removal.h"
#include "headrace/text/json_string.h"
#include "hub_environment.h"
#include "model_path.h"
#include "output.h"

namespace headrace::app {
namespace {

HubRemoval removal_of(const std::string& model) {
  refuse_bundled(model, "only models of Hugging Face's cache are removed");
  const auto name = parse_hub_name(model);
  HR_REQUIRE(name, ErrorCode::kInvalidArgument, "'", printable(model),
             "' is no name of a model in Hugging Face's cache, expected ORG/NAME or ORG/NAME@REVISION; a directory of "
             "your own is yours to remove");
  HR_REQUIRE(name->gguf.empty(), ErrorCode::kInvalidArgument, printable(model),
             ": rm removes all that is here of a repository: headrace rm ", name->repository);
  const std::filesystem::path cache = hub_cache();
  const std::optional<std::string> revision =
      model.find('@') == std::string::npos ? std::nullopt : std::optional(name->revision);
  const auto removal = cache.empty() ? std::nullopt : plan_removal(cache, name->repository, revision);
  HR_REQUIRE(removal, ErrorCode::kModelFile, model, ": is not in ", cache.string(),
             "; headrace list names the models that are here");
  return *removal;
}

bool confirmed(const std::string& question) {
  HR_REQUIRE(isatty(STDIN_FILENO) != 0, ErrorCode::kInvalidArgument,
             "rm asks before it removes, and standard input is no terminal; --yes removes without a question");
  write_err(question);
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace

int remove_model(const std::string& model, Confirm confirm, Output output) {
  const HubRemoval removal = removal_of(model);
  const std::string size = human_bytes(removal.bytes);
  const std::string what =
      removal.commits.size() > 1 ? fmt::format("{} ({} snapshots)", model, removal.commits.size()) : model;
  if (confirm == Confirm::kAsk && !confirmed(fmt::format("Remove {} and free {}? [y/N] ", what, size))) {
    write_err("Nothing was removed.\n");
    return 0;
  }
  remove(removal);
  write_out(output == Output::kJson ? fmt::format("{{\"model\": {}, \"snapshots\": {}, \"bytes\": {}}}\n",
                                                  json_string(model), removal.commits.size(), removal.bytes)
                                    : fmt::format("Removed {}: {} are free again.\n", what, size));
  return 0;
}

}  // namespace headrace::app
