#include "trace_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "headrace/text/json_string.h"

namespace headrace::app {

std::string trace_line(const StepReport& r, const Tokenizer& tokenizer) {
  std::vector<std::string> blocks, decided;
  for (const StepReport::Block& b : r.blocks) {
    blocks.push_back(fmt::format(R"({{"begin": {}, "end": {}, "state": "{}", "masks": {}}})", b.begin, b.end,
                                 b.state == DecodingBlock::State::kActive ? "active" : "to_cache", b.num_masked));
  }
  for (const StepReport::Token& t : r.decided) {
    decided.push_back(fmt::format(R"({{"position": {}, "id": {}, "text": {}, "confidence": {:.6f}}})", t.position, t.id,
                                  json_string(tokenizer.decode(std::array{t.id})), t.confidence));
  }
  return fmt::format(
      R"({{"step": {}, "context": {}, "first": {}, "rows": {}, "stored": [{}, {}], "blocks": [{}], "decided": [{}]}})"
      "\n",
      r.step, r.context_len, r.first_position, r.num_rows, r.stored.begin, r.stored.end, fmt::join(blocks, ", "),
      fmt::join(decided, ", "));
}

}  // namespace headrace::app
