// Locks that processes share, as Python's filelock takes them.
#pragma once
#include <filesystem>
#include <optional>

namespace headrace {

// Holds flock(2) on a file, which stays when the lock ends. On a file system without locks it holds nothing.
class FileLock {
 public:
  // Returns nothing while another process holds it. Creates the file, writable by its group. Error kIo.
  static std::optional<FileLock> try_lock(const std::filesystem::path& file);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int file) : file_(file) {}
  int file_;
};

}  // namespace headrace
