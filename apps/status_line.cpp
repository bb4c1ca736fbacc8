#include "status_line.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace headrace::app {
namespace {

std::string counted(int64_t number, std::string_view thing) {
  return fmt::format("{} {}{}", number, thing, number == 1 ? "" : "s");
}

}  // namespace

std::string status_line(const StatusLine& line) {
  const auto& [c, t, decoding, runs, columns] = line;
  std::vector<std::string> parts = {counted(c.num_visible, "token")};
  if (c.num_visible > 0) {
    const double seconds = t.total_s - t.device_start_s - t.load_s;
    parts.push_back(fmt::format("{:.0f} tokens/s", static_cast<double>(c.num_visible) / seconds));
    parts.push_back(fmt::format("first after {:.2f} s", t.first_token_s));
  }
  if (decoding == StatusLine::Decoding::kBlocks) {
    parts.push_back(counted(c.num_forwards, "forward"));
    if (c.num_visible > 0) parts.push_back(fmt::format("{:.2f} tokens/forward", c.tokens_per_forward()));
  }
  if (runs == StatusLine::Runs::kOnDevice)
    parts.push_back(fmt::format("device ready after {:.2f} s", t.device_start_s));
  std::string text = "[" + parts.front();
  constexpr size_t kBracket = 1;  // that closes it
  for (size_t i = 1; i < parts.size(); ++i) {
    if (text.size() + 2 + parts[i].size() + kBracket > static_cast<size_t>(columns)) break;
    text += ", " + parts[i];
  }
  return text + "]\n";
}

}  // namespace headrace::app
