// What may be asked of a strategy beyond its name. The registry says of each strategy which options it reads; whatever
// else is asked of it is an error, so that no request or flag is ignored.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

// A field of DecodingParams, of each request, or of StrategyConfig.
enum class DecodingOption : uint8_t {
  kRule,
  kSchedule,
  kSteps,
  kMaxPasses,
  kThreshold,
  kAddBlock,
  kStability,
  kSemiComplete,
  kEditThreshold,
  kRemaskThreshold,
  kMaxEdits,
  kOrderTemperature,
  kMergeCandidates,
  kCopyPenalty,
  kCfgScale,
  kBlockSize,
  kMaskTokenId,
  kNumBlocks,
  kPipeline,
  kBlockCache,
  kMerge,
};

class DecodingOptionSet {
 public:
  constexpr DecodingOptionSet() = default;
  constexpr DecodingOptionSet(std::initializer_list<DecodingOption> options) {
    for (const DecodingOption option : options) bits_ |= bit(option);
  }
  constexpr bool contains(DecodingOption option) const { return (bits_ & bit(option)) != 0; }
  constexpr DecodingOptionSet operator|(DecodingOptionSet other) const {
    other.bits_ |= bits_;
    return other;
  }

 private:
  static constexpr uint32_t bit(DecodingOption option) { return uint32_t{1} << static_cast<uint32_t>(option); }
  uint32_t bits_ = 0;
};

// The names of its field, without which struct it is in.
std::string_view name_of(DecodingOption option);

// As flags and reports spell them.
std::string_view text_of(DecodingParams::Rule rule);
std::string_view text_of(DecodingParams::Schedule schedule);
std::string_view text_of(BlockCache cache);

// A value that somebody gave: one that a field without a default holds, or that differs from the default.
struct AskedOption {
  DecodingOption option;
  std::string value;
  std::string unasked;  // what stands there otherwise
};
std::vector<AskedOption> asked_options(const DecodingParams& params);
std::vector<AskedOption> asked_options(const StrategyConfig& config);

// What a strategy does about an option. Error kInvalidArgument for a name that is unknown.
bool reads_option(std::string_view strategy, DecodingOption option);
// The strategies that read it, in the registry's order, with commas between them.
std::string readers_of(DecodingOption option);

// Error kInvalidArgument for what the strategy does not read: the option, its value, and who reads it.
void refuse_unread(std::string_view strategy, const std::vector<AskedOption>& asked);

}  // namespace headrace
