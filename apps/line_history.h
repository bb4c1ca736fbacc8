// Lines that were typed into a chat, which a file keeps.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace headrace::app {

// Oldest first. The file is of this user alone; several programs may add to it. Not thread-safe.
class LineHistory {
 public:
  static constexpr size_t kMost = 1000;  // lines that are kept

  // Reads `file`, and shortens one that has grown to twice kMost. An empty name, or a file that cannot be read or
  // written: lines are kept in memory alone.
  explicit LineHistory(std::filesystem::path file);

  const std::vector<std::string>& lines() const { return lines_; }
  void add(const std::string& line);  // not an empty one, nor the last one again

 private:
  std::filesystem::path file_;
  std::vector<std::string> lines_;
};

// $XDG_STATE_HOME/headrace/history, else ~/.local/state/headrace/history; empty without a home.
std::filesystem::path history_file();

}  // namespace headrace::app
