// Standard output, standard error and files, unbuffered.
#pragma once
#include <string>
#include <string_view>

namespace headrace::app {

// Writes all of it; false when the reader has gone, which is the reader's choice and no error. Error kIo: a full disk,
// say.
bool write_out(std::string_view text);

enum class Keep : unsigned char { kNoControls, kLinesAndTabs };
// `text` with the control characters of ASCII and Unicode (C1) as \xNN: what a file or a model says must not steer a
// terminal. Line feeds and tabs may stay.
std::string without_controls(std::string_view text, Keep keep = Keep::kNoControls);

// As much of it as somebody reads.
void write_err(std::string_view text);

// Writes all of it to an open file. Returns 0, or the errno of what failed.
int write_all(int file, std::string_view text);

// A file that is made, or emptied, when it is opened; but what standard output or standard error goes to is written
// behind what is there, whatever its name.
class OutputFile {
 public:
  explicit OutputFile(std::string path);  // Error kInvalidArgument
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(std::string_view text);  // Error kIo
  void sync();                        // what was written survives a loss of power. Error kIo

 private:
  std::string path_;
  int file_;
};

}  // namespace headrace::app
