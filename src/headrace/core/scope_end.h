#pragma once
#include <utility>

namespace headrace {

// Calls `f`, which must not throw, at the end of the scope, also after an exception.
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
