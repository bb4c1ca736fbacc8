// The places where a system keeps the certificates of those whom it trusts.
#pragma once
#include <filesystem>
#include <string>

namespace headrace {

// Returns the first bundle of certificates that is at a usual place of Debian, Fedora, SUSE, Alpine, Arch or a BSD,
// under `root`; empty where there is none. libcurl knows the place of the distribution that built it alone.
std::string certificate_bundle(const std::filesystem::path& root = "/");

}  // namespace headrace
