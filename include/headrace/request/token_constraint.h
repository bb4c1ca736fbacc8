// Limits which tokens a request may choose next: a grammar.
#pragma once
#include <cstdint>
#include <span>

namespace headrace {

// The state of one request. The engine calls it, on one thread, in the order of the request's tokens. A call that
// throws ends the request alone, with that error.
class TokenConstraint {
 public:
  TokenConstraint() = default;
  TokenConstraint(const TokenConstraint&) = delete;
  TokenConstraint& operator=(const TokenConstraint&) = delete;
  virtual ~TokenConstraint() = default;

  // Sets bit i % 32 of word i / 32 for each token i that may come next, and clears the others. `bits` has a bit for
  // each id that the engine may choose. At least one must be set.
  virtual void fill(std::span<uint32_t> bits) = 0;
  // Tells the token that came.
  virtual void accept(int32_t id) = 0;
};

}  // namespace headrace
