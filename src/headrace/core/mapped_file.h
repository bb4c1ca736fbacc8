// Files of a model directory: opened once, read by position, mapped read-only.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace headrace {

class SigbusGuard;

// A regular file, open for reading. Errors are kModelFile and start with the file's path.
class OpenFile {
 public:
  // Follows symbolic links. Error for what is missing, unreadable, a directory, pipe, socket or device, or a loop of
  // links.
  explicit OpenFile(const std::filesystem::path& path);
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile();

  const std::string& name() const { return name_; }
  uint64_t bytes() const { return bytes_; }  // when it was opened
  int descriptor() const { return descriptor_; }

  // Fills [out, out + count) from `offset`. Error when the file ends before, or on a read error.
  void read(uint64_t offset, void* out, uint64_t count) const;

 private:
  std::string name_;
  int descriptor_ = -1;
  uint64_t bytes_ = 0;
};

// All bytes of `file`, mapped read-only and privately: writing to them is a fault. The mapping outlives the OpenFile.
// A file that shrinks afterwards makes a read of the lost pages a SIGBUS; `guard`, if given, turns that into a clean
// exit (sigbus_guard.h), and outlives this object. Error kOutOfMemory where the system has no room for the mapping.
class MappedFile {
 public:
  MappedFile(const OpenFile& file, SigbusGuard* guard);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const unsigned char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  unsigned char* data_ = nullptr;
  uint64_t bytes_ = 0;
  SigbusGuard* guard_ = nullptr;  // not owned; may be null
};

}  // namespace headrace
