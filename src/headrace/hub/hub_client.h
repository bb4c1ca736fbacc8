// Asks a hub about its repositories.
#pragma once
#include <memory>
#include <string>

#include "headrace/core/error.h"
#include "headrace/hub/hub_listing.h"
#include "headrace/hub/hub_name.h"
#include "headrace/hub/hub_settings.h"

namespace headrace {

class HubRequest;

class HubClient {
 public:
  // Error kInvalidArgument where the endpoint is no URL of http or https, or the token holds what no header may.
  explicit HubClient(HubSettings settings);

  const HubSettings& settings() const { return settings_; }

  // Asks which files the repository has at the name's revision. Tries again where a busy hub may answer later. Errors,
  // with what to do: kIo where the hub cannot be reached or does not answer, kModelFile where it has no such model or
  // does not give it to us.
  HubListing list(const HubName& name) const;

  // Asks for the size and the hash of a file, which not all hubs list. Errors as list; kModelFile where the hub states
  // them here neither.
  HubFile describe(const HubName& name, const std::string& commit, const std::string& file) const;

  // The address of a file.
  std::string file_url(const std::string& repository, const std::string& commit, const std::string& file) const;

  // The error of a request that a hub refused with a status from 400 on.
  Error refusal(const HubRequest& request, const HubName& name) const;
  // The error of a request that had no response. `code`: CURLcode.
  Error failure(const HubRequest& request, int code) const;

 private:
  struct Answer {
    std::unique_ptr<HubRequest> request;
    std::string body;
  };
  enum class Method : unsigned char { kGet, kHead };
  Answer ask(const HubName& name, const std::string& url, Method method) const;
  Error refused_access(const HubRequest& request, const HubName& name) const;

  HubSettings settings_;
};

}  // namespace headrace
