#include "headrace/hub/content_hash.h"

#include <openssl/evp.h>

#include <array>

#include "headrace/core/error.h"

namespace headrace {
namespace {

constexpr size_t kSha256Digits = 64, kGitDigits = 40;

}  // namespace

void ContentHash::Free::operator()(evp_md_ctx_st* state) const { EVP_MD_CTX_free(state); }

bool ContentHash::is_hash(std::string_view text) {
  return (text.size() == kSha256Digits || text.size() == kGitDigits) &&
         text.find_first_not_of("0123456789abcdef") == text.npos;
}

ContentHash::ContentHash(std::string_view hash, int64_t size) : state_(EVP_MD_CTX_new()) {
  HR_ASSERT(is_hash(hash));
  const bool git = hash.size() == kGitDigits;
  HR_ASSERT(EVP_DigestInit_ex(state_.get(), git ? EVP_sha1() : EVP_sha256(), nullptr) == 1);
  if (git) add(std::string("blob ") + std::to_string(size) + '\0');
}

void ContentHash::add(std::string_view bytes) {
  HR_ASSERT(EVP_DigestUpdate(state_.get(), bytes.data(), bytes.size()) == 1);
}

std::string ContentHash::digits() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  HR_ASSERT(EVP_DigestFinal_ex(state_.get(), digest.data(), &size) == 1);
  std::string digits;
  for (unsigned i = 0; i < size; ++i) {
    for (const int half : {digest[i] >> 4, digest[i] & 15}) digits += "0123456789abcdef"[half];
  }
  return digits;
}

}  // namespace headrace
