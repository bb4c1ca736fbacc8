#pragma once
#include <utility>

namespace headrace {

// Calls `f`, which does not throw, when the scope is left, by an exception too.
template <class F>
class ScopeEnd {
 public:
  explicit ScopeEnd(F f) : f_(std::move(f)) {}
  ScopeEnd(const ScopeEnd&) = delete;
  ScopeEnd& operator=(const ScopeEnd&) = delete;
  ~ScopeEnd() { f_(); }

 private:
  F f_;
};

}  // namespace headrace
