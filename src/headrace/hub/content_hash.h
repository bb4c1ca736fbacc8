// The hashes by which a hub names the contents of files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace headrace {

// Computes the hash of a file in pieces. A file in Git LFS has its SHA-256; any other one has git's, the SHA-1 of
// "blob SIZE\0" and the content.
class ContentHash {
 public:
  // `hash`: the expected one, whose length says which it is: 64 digits or 40. `size`: bytes of the file.
  ContentHash(std::string_view hash, int64_t size);
  void add(std::string_view bytes);
  // The hash of all bytes so far, as hexadecimal digits in lower case. Nothing may be added behind it.
  std::string digits();

  // Returns true if `text` is one of these hashes.
  static bool is_hash(std::string_view text);

 private:
  struct Free {
    void operator()(evp_md_ctx_st* state) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> state_;
};

}  // namespace headrace
