#include "headrace/weights/gguf_generation.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/weights/json_members.h"

namespace headrace {
namespace {

constexpr std::string_view kTokenTexts = "tokenizer.ggml.tokens", kTokenTypes = "tokenizer.ggml.token_type";
constexpr int64_t kControl = 3;

constexpr std::array<std::string_view, 3> kEndKeys = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                                      "tokenizer.ggml.eom_token_id"};
// Files often name the end of a text and not that of a turn, or the other way round.
constexpr std::array<std::string_view, 8> kEndTexts = {
    "<|im_end|>", "<|endoftext|>",   "<|eot_id|>",    "<|eom_id|>",
    "<|end|>",    "<|end_of_text|>", "<end_of_turn>", "<｜end▁of▁sentence｜>"};

constexpr std::array<std::pair<std::string_view, const char*>, 5> kSampling = {
    {{"general.sampling.temp", "temperature"},
     {"general.sampling.top_k", "top_k"},
     {"general.sampling.top_p", "top_p"},
     {"general.sampling.min_p", "min_p"},
     {"general.sampling.penalty_repeat", "repetition_penalty"}}};

std::set<int64_t> end_ids(const GgufHeader& header) {
  std::set<int64_t> ids;
  for (const std::string_view key : kEndKeys)
    if (const auto id = gguf_token_id(header, key)) ids.insert(*id);
  const auto* const tokens = header.texts(kTokenTexts);
  const auto* const types = header.integers(kTokenTypes);
  if (tokens == nullptr || types == nullptr) return ids;
  for (size_t id = 0; id < std::min(tokens->size(), types->size()); ++id)
    if ((*types)[id] == kControl && std::ranges::find(kEndTexts, (*tokens)[id]) != kEndTexts.end())
      ids.insert(static_cast<int64_t>(id));
  return ids;
}

}  // namespace

std::optional<int64_t> gguf_token_id(const GgufHeader& header, std::string_view key) {
  const auto id = header.integer(key);
  const auto* const tokens = header.texts(kTokenTexts);
  if (!id || tokens == nullptr) return id;
  HR_REQUIRE(*id >= 0 && std::cmp_less(*id, tokens->size()), ErrorCode::kModelFile, header.file(), ": key '", key,
             "': is ", *id, ", expected the id of one of ", tokens->size(), " tokens");
  return id;
}

std::string gguf_generation_json(const GgufHeader& header) {
  JsonMembers json;
  if (const auto bos = gguf_token_id(header, "tokenizer.ggml.bos_token_id")) json.add("bos_token_id", *bos);
  json.add_array("eos_token_id", end_ids(header), [](int64_t id) { return str(id); });
  for (const auto& [key, name] : kSampling) {
    const auto value = header.number(key);
    if (!value) continue;
    if (std::string_view(name) == "top_k") {
      json.add(name, header.integer(key).value_or(0));
    } else {
      json.add_number(name, *value);
    }
  }
  return json.object();
}

}  // namespace headrace
