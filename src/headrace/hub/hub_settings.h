// Which hub to ask, and how.
#pragma once
#include <chrono>
#include <string>

#include "headrace/core/log.h"

namespace headrace {

struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // without a slash at its end
  std::string token = {};                           // sent to the endpoint's host alone; empty: none
  std::string certificates = {};        // a file of certificates to trust; empty: the first of certificate_bundle()
  std::string certificate_folder = {};  // a folder of them; empty: libcurl's
  int32_t parallel = 4;                 // files at once
  int32_t tries = 5;                    // without a byte that came
  std::chrono::milliseconds first_wait{1000};  // between tries; doubled each time, up to eight times
  std::chrono::milliseconds connect_time{10000};
  std::chrono::seconds stall_time{30};  // without a byte, after which a connection is given up
  LogCallback log = {};                 // tries that failed, at level kInfo
};

}  // namespace headrace
