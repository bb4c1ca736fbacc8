// One safetensors file: a validated header and mapped data.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "headrace/core/mapped_file.h"
#include "headrace/weights/safetensors_header.h"

namespace headrace {

// Opens, validates (before anything is mapped), then maps. Immutable afterwards: threads may share it.
class SafetensorsFile {
 public:
  // Error kModelFile: one line with path, tensor and rule. `guard` may be null; it outlives this object.
  explicit SafetensorsFile(const std::filesystem::path& path, SigbusGuard* guard = nullptr);

  const std::string& name() const { return file_.name(); }
  uint64_t bytes() const { return file_.bytes(); }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // ordered by where their data begin
  // The first of entry.end - entry.begin bytes: read-only, and not always aligned to the element.
  const unsigned char* data(const SafetensorsEntry& entry) const { return mapped_.data() + data_start_ + entry.begin; }

 private:
  OpenFile file_;
  uint64_t data_start_ = 0;
  std::vector<SafetensorsEntry> entries_;
  MappedFile mapped_;
};

}  // namespace headrace
