#include "headrace/core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/core/sigbus_guard.h"

namespace headrace {
namespace {

// Linux transfers at most 2^31 - 4096 bytes in one read.
constexpr uint64_t kMaxRead = uint64_t{1} << 30;

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

OpenFile::OpenFile(const std::filesystem::path& path) : name_(path.string()) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  HR_REQUIRE(descriptor_ >= 0, ErrorCode::kModelFile, name_, ": cannot be opened: ", reason(errno));
  struct stat info {};
  const bool known = ::fstat(descriptor_, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    ::close(descriptor_);
    throw Error(
        ErrorCode::kModelFile,
        str(name_, ": is ", known && S_ISDIR(info.st_mode) ? "a directory" : "no regular file", ", expected a file"));
  }
  bytes_ = static_cast<uint64_t>(info.st_size);
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : name_(std::move(other.name_)), descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_) {}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OpenFile::read(uint64_t offset, void* out, uint64_t count) const {
  auto* to = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, to, std::min(count, kMaxRead), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    HR_REQUIRE(got >= 0, ErrorCode::kModelFile, name_, ": reading at byte ", offset, " failed: ", reason(errno));
    HR_REQUIRE(got > 0, ErrorCode::kModelFile, name_, ": ends at byte ", offset, ", ", count,
               " bytes before what it had when it was opened");
    to += got, offset += static_cast<uint64_t>(got), count -= static_cast<uint64_t>(got);
  }
}

MappedFile::MappedFile(const OpenFile& file, SigbusGuard* guard) : bytes_(file.bytes()), guard_(guard) {
  if (bytes_ == 0) return;
  void* mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  const int error = errno;
  HR_REQUIRE(mapped != MAP_FAILED, error == ENOMEM ? ErrorCode::kOutOfMemory : ErrorCode::kModelFile, file.name(),
             ": mapping ", bytes_, " bytes failed: ", reason(error));
  data_ = static_cast<unsigned char*>(mapped);
  if (guard_ && !guard_->add(data_, bytes_, file.name())) {
    ::munmap(data_, bytes_);
    throw Error(ErrorCode::kModelFile, str(file.name(), ": more than ", SigbusGuard::kMaxRanges, " files are mapped"));
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), guard_(other.guard_) {}

MappedFile::~MappedFile() {
  if (!data_) return;
  if (guard_) guard_->remove(data_);
  ::munmap(data_, bytes_);
}

}  // namespace headrace
