// Standard output, standard error and files, unbuffered.
#pragma once
#include <string>
#include <string_view>

namespace headrace::app {

// Writes all of it; false when the reader has gone, which is the reader's choice and no error. Error kIo: a full disk,
// say.
bool write_out(std::string_view text);
// As much of it as somebody reads.
void write_err(std::string_view text);

// A file that is made, or emptied, when it is opened.
class OutputFile {
 public:
  explicit OutputFile(std::string path);  // Error kInvalidArgument
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(std::string_view text);  // Error kIo

 private:
  std::string path_;
  int file_;
};

}  // namespace headrace::app
