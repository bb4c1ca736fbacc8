// The file beside a batch's output that holds what is done: an interrupted run goes on from it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/core/error.h"

namespace headrace::app {

// Settings on which a run's results depend, in words for messages: {"--seed", "0"}.
using RunSettings = std::vector<std::pair<std::string, std::string>>;

// The first line holds the settings, each other one the result of a line of the input, in the order in which they
// ended. Every line begins with a hash of its rest, so that one that a crash has cut or lost is found. Not thread-safe.
class PartialResults {
 public:
  // Opens or makes `path`, for results of `num_lines` lines, and locks it against other runs. Cuts off what a crash has
  // left of a line, with all behind it. Error kInvalidArgument if it is of a run with other settings, if another run
  // has it, or if it is no such file; kIo.
  PartialResults(std::string path, const RunSettings& settings, int32_t num_lines);
  PartialResults(const PartialResults&) = delete;
  PartialResults& operator=(const PartialResults&) = delete;
  ~PartialResults();  // removes the file if there are no results

  bool has(int32_t line) const { return places_.at(static_cast<size_t>(line)).bytes > 0; }
  int32_t size() const { return size_; }  // results
  int32_t num_failed() const;             // results of a status other than 200
  bool complete() const { return size_ == static_cast<int32_t>(places_.size()); }

  // Adds the result of a line that has none: JSON without a line break. Error kIo.
  void append(int32_t line, int status, std::string_view json);
  void sync();  // what was added survives a loss of power. Error kIo
  // Writes all results to `output` in the order of their lines, by a rename, and removes the file. Error kIo.
  void finish(const std::string& output);

 private:
  struct Place {
    int64_t begin = 0, bytes = 0;  // of the JSON; no bytes: no result
    int status = 0;
  };
  void read(const RunSettings& settings);
  // Returns the refusal of a run whose header differs.
  std::optional<Error> difference(std::string_view header, const RunSettings& settings) const;
  bool read_record(std::string_view content, int64_t begin);
  void write(std::string_view text);
  [[noreturn]] void fail(std::string_view what, int error) const;

  std::string path_;
  int file_;
  int64_t end_ = 0;  // of the file
  std::vector<Place> places_;
  int32_t size_ = 0;
};

}  // namespace headrace::app
