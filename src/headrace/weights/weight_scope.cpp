#include "headrace/weights/weight_scope.h"

#include <array>
#include <vector>

namespace headrace {
namespace {

struct Layout {
  const char *body, *head;
};

constexpr std::array<Layout, 3> kLayouts = {{
    {"model.", ""},
    {"model.language_model.", ""},
    {"language_model.model.", "language_model."},
}};

}  // namespace

TextWeights find_text_weights(Checkpoint& checkpoint) {
  std::vector<Layout> found;
  for (const Layout& layout : kLayouts)
    if (checkpoint.has(str(layout.body, "embed_tokens.weight"))) found.push_back(layout);
  if (checkpoint.is_random()) found.push_back(kLayouts[0]);
  HR_REQUIRE(!found.empty(), ErrorCode::kModelFile, "checkpoint: embed_tokens.weight is missing; looked under '",
             kLayouts[0].body, "', '", kLayouts[1].body, "', '", kLayouts[2].body, "'");
  HR_REQUIRE(found.size() == 1, ErrorCode::kModelFile, "checkpoint: embed_tokens.weight is stored under '",
             found[0].body, "' and under '", found[1].body, "'");
  return {WeightScope(checkpoint, found[0].body), WeightScope(checkpoint, found[0].head)};
}

}  // namespace headrace
