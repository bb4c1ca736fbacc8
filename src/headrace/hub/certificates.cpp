#include "headrace/hub/certificates.h"

#include <array>

namespace headrace {

std::string certificate_bundle(const std::filesystem::path& root) {
  constexpr std::array kPlaces = {
      "etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Alpine, Gentoo, NixOS
      "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, Red Hat, CentOS
      "etc/pki/tls/certs/ca-bundle.crt",                   // older ones of these
      "etc/ssl/ca-bundle.pem",                             // SUSE
      "etc/ssl/cert.pem",                                  // Alpine, Void, OpenBSD
      "etc/pki/tls/cert.pem",                              // Amazon Linux
      "usr/local/share/certs/ca-root-nss.crt",             // FreeBSD
  };
  for (const char* place : kPlaces) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(root / place, ignored)) return (root / place).string();
  }
  return {};
}

}  // namespace headrace
