// headrace pull: downloads a model into Hugging Face's cache.
#include <fmt/format.h>

#include "commands.h"
#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "model_path.h"
#include "output.h"
#include "pull_model.h"

namespace headrace::app {

int pull_command(const PullFlags& flags, Output output) {
  refuse_bundled(flags.model, "there is nothing to download");
  const auto name = parse_hub_name(flags.revision.empty() ? flags.model : flags.model + "@" + flags.revision);
  HR_REQUIRE(
      name, ErrorCode::kInvalidArgument, "'", printable(flags.model), "'",
      flags.revision.empty() ? "" : " with the revision '" + printable(flags.revision) + "'",
      " is no name of a model on a hub, expected ORG/NAME, ORG/NAME@REVISION, or ORG/NAME:Q4_K_M for a file in GGUF");
  using Events = PullWish::Events;
  const bool json = output == Output::kJson;
  const auto directory =
      pull_model({.name = *name, .token = flags.token, .events = json ? Events::kJson : Events::kText});
  if (!json) write_out(directory.string() + "\n");
  return 0;
}

}  // namespace headrace::app
