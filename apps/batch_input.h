// The file of requests that run-batch reads.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::app {

// Keeps where lines are, not what they say. Thread-safe.
class BatchInput {
 public:
  // Reads the file once. Blank lines are none. Error kInvalidArgument if it cannot be read, is no regular file, has no
  // line, or two lines have the same custom_id.
  explicit BatchInput(const std::string& path);
  BatchInput(const BatchInput&) = delete;
  BatchInput& operator=(const BatchInput&) = delete;
  ~BatchInput();

  int32_t size() const { return static_cast<int32_t>(lines_.size()); }
  std::string text(int32_t index) const;                                                        // Error kIo
  int64_t number(int32_t index) const { return lines_.at(static_cast<size_t>(index)).number; }  // in the file, from 1
  uint64_t hash() const { return hash_; }                                                       // of the content
  int64_t modified() const { return modified_; }                                                // seconds since 1970

 private:
  struct Line {
    int64_t number, begin, bytes;
  };
  void read_lines();

  std::string path_;
  int file_;
  std::vector<Line> lines_;
  uint64_t hash_ = 0;
  int64_t modified_ = 0;
};

}  // namespace headrace::app
