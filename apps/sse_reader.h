// Server-sent events, as they come. Source: WHATWG HTML, "Server-sent events".
#pragma once
#include <string>
#include <string_view>

namespace headrace::app {

// Puts events together of bytes that are cut anywhere. Fields other than data, and comments, are left out.
class SseReader {
 public:
  // Calls on_event(std::string_view data) for each event that `bytes` complete.
  template <class OnEvent>
  void push(std::string_view bytes, const OnEvent& on_event) {
    for (size_t end = 0; (end = bytes.find_first_of("\r\n")) != bytes.npos; bytes.remove_prefix(end + 1)) {
      const bool is_rest = bytes[end] == '\n' && end == 0 && ended_by_return_;  // of CRLF
      ended_by_return_ = bytes[end] == '\r';
      if (is_rest) continue;
      line_.append(bytes.substr(0, end));
      end_line(on_event);
    }
    if (!bytes.empty()) ended_by_return_ = false;
    line_.append(bytes);
  }

 private:
  template <class OnEvent>
  void end_line(const OnEvent& on_event) {
    constexpr std::string_view kData = "data:";
    if (line_.empty()) {
      if (has_data_) on_event(std::string_view(data_));
      data_.clear(), has_data_ = false;
    } else if (line_.starts_with(kData)) {
      if (has_data_) data_ += '\n';
      data_.append(line_, kData.size() + (line_[kData.size()] == ' ' ? 1 : 0));
      has_data_ = true;
    }
    line_.clear();
  }

  std::string line_, data_;
  bool has_data_ = false, ended_by_return_ = false;
};

}  // namespace headrace::app
