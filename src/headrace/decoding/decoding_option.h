// The options of strategies. The registry lists the options that each strategy reads; any other is an error, so no
// request parameter or flag is ignored.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

// A field of DecodingParams (per request) or of StrategyConfig.
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

// Returns the name of the option's field, without its struct.
std::string_view name_of(DecodingOption option);

// Return the spelling of flags and reports.
std::string_view text_of(DecodingParams::Rule rule);
std::string_view text_of(DecodingParams::Schedule schedule);
std::string_view text_of(BlockCache cache);

// A value set by the caller: a field without a default that holds a value, or one that differs from its default.
struct AskedOption {
  DecodingOption option;
  std::string value;
  std::string unasked;  // the default
};
std::vector<AskedOption> asked_options(const DecodingParams& params);
std::vector<AskedOption> asked_options(const StrategyConfig& config);

// Returns true if the strategy reads the option. Error kInvalidArgument for an unknown name.
bool reads_option(std::string_view strategy, DecodingOption option);
// Returns the strategies that read it, in the registry's order, separated by commas.
std::string readers_of(DecodingOption option);

// Error kInvalidArgument if the strategy does not read one of `asked`; names the option, its value, and the strategies
// that read it.
void refuse_unread(std::string_view strategy, const std::vector<AskedOption>& asked);

}  // namespace headrace
