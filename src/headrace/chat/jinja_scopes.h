// Scopes of a Renderer: what they change goes back when they end. Included by its sources alone.
#pragma once
#include <span>
#include <utility>

#include "headrace/chat/jinja_renderer.h"

namespace headrace::jinja {

inline constexpr int32_t kMaxRecursion = 800;  // of a Renderer's functions: half a megabyte of stack

// Variables that are set within it end with it.
class Renderer::Scope {
 public:
  explicit Scope(Renderer& renderer)
      : renderer_(renderer),
        begin_(renderer.bindings_.size()),
        outer_begin_(std::exchange(renderer.scope_begin_, begin_)),
        was_outermost_(std::exchange(renderer.is_outermost_, false)) {}
  ~Scope() {
    auto& bindings = renderer_.bindings_;
    bindings.erase(bindings.begin() + static_cast<std::ptrdiff_t>(begin_), bindings.end());
    renderer_.scope_begin_ = outer_begin_;
    renderer_.is_outermost_ = was_outermost_;
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Renderer& renderer_;
  size_t begin_, outer_begin_;
  bool was_outermost_;
};

class Renderer::Depth {
 public:
  explicit Depth(Renderer& renderer) : renderer_(renderer) {
    if (++renderer_.depth_ > kMaxRecursion) fail("it nests too deep");
  }
  ~Depth() { --renderer_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Renderer& renderer_;
};

// Output goes into a text of its own while it lives.
class Renderer::Captured {
 public:
  explicit Captured(Renderer& renderer)
      : renderer_(renderer), out_(std::exchange(renderer.out_, &builder_)), builder_(&renderer.context_.meter) {}
  ~Captured() { renderer_.out_ = out_; }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  TextPtr finish() { return builder_.finish(); }

 private:
  Renderer& renderer_;
  TextBuilder* out_;
  TextBuilder builder_;
};

// A call of a macro or a recursive loop: of the variables around it, it sees those of `captured` and the outermost.
class Renderer::Frame {
 public:
  Frame(Renderer& renderer, std::span<const Binding> captured)
      : renderer_(renderer), scope_(renderer), begin_(std::exchange(renderer.frame_begin_, renderer.bindings_.size())) {
    if (++renderer_.calls_ > renderer_.limits_.calls) {
      --renderer_.calls_;
      renderer_.frame_begin_ = begin_;
      fail("macros and loops call one another more than ", renderer_.limits_.calls, " deep");
    }
    const std::vector<Binding> copies(captured.begin(), captured.end());  // `captured` may lie in the vector that grows
    renderer_.bindings_.insert(renderer_.bindings_.end(), copies.begin(), copies.end());
    renderer_.scope_begin_ = renderer_.bindings_.size();
  }
  ~Frame() {
    --renderer_.calls_;
    renderer_.frame_begin_ = begin_;
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

 private:
  Renderer& renderer_;
  Scope scope_;
  size_t begin_;
};

}  // namespace headrace::jinja
