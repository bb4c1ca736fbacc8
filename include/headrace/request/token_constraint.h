// Limits which tokens a request may choose next: a grammar.
#pragma once
#include <cstdint>
#include <span>

namespace headrace {

// The state of one request, whose strategy decides one token at a time. The engine calls it, on one thread: fill()
// before each token, when all before it are accepted, and again if the step is repeated. A call that throws ends the
// request alone, with that error.
class TokenConstraint {
 public:
  TokenConstraint() = default;
  TokenConstraint(const TokenConstraint&) = delete;
  TokenConstraint& operator=(const TokenConstraint&) = delete;
  virtual ~TokenConstraint() = default;

  // Sets bit i % 32 of word i / 32 for each token i that may come next, and clears the others. `bits` has a bit for
  // each id that the engine may choose. If none is set, or biases and bans forbid them, the request ends with an error.
  virtual void fill(std::span<uint32_t> bits) = 0;
  // Tells the token that came.
  virtual void accept(int32_t id) = 0;
};

}  // namespace headrace
