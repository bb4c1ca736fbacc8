// Downloads a model by its name on a hub, and says so on standard error.
#pragma once
#include <filesystem>
#include <string>

#include "headrace/hub/hub_name.h"

namespace headrace::app {

struct PullWish {
  HubName name;
  std::string token = {};   // empty: the environment's
  std::string reason = {};  // in front of the hub's refusal: "a/b: no such model directory"; empty: nothing
  enum class Events : unsigned char { kText, kJson } events = Events::kText;  // kJson: on standard output
};

// Says how large the model is and downloads what is not here yet, with its progress. Returns its directory, or its GGUF
// file. An interrupt ends the program at once; what came is kept. Errors as plan_pull and pull; kModelFile where the
// environment says that the machine is offline, or no folder for models.
std::filesystem::path pull_model(const PullWish& wish);

}  // namespace headrace::app
