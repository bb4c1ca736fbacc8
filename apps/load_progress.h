// Shows on standard error how many bytes of a large model are loaded, or written.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::app {

// Models below kLarge load at once and show nothing, unless told otherwise.
class LoadProgress {
 public:
  static constexpr int64_t kLarge = int64_t{1} << 30;  // bytes
  static constexpr const char* kWipe = "\r\033[K";     // of a terminal's line

  enum class Style : uint8_t {
    kBar,    // of a terminal: one line that is written over, and wiped at the end
    kLines,  // a line for each tenth
  };
  // `work`: what is done with the bytes. Less than `least` of them in all shows nothing.
  explicit LoadProgress(Style style, std::string_view work = "loading", int64_t least = kLarge)
      : style_(style), work_(work), least_(least) {}

  // Returns the text to write: empty while the shown number stays the same. `total` 0: not known beforehand.
  std::string update(int64_t done, int64_t total);
  std::string finish();

 private:
  Style style_;
  std::string_view work_;
  int64_t least_;
  int64_t shown_ = -1;  // the last step that was shown
};

}  // namespace headrace::app
