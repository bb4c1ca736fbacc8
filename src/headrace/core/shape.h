// Sizes and strides of up to eight dimensions, in elements.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>

namespace headrace {

// A short list of dimensions. Value type; rank 0 is a scalar.
class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);  // Error kInvalidArgument past eight dimensions

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) { return dims_[static_cast<size_t>(i)]; }
  int64_t numel() const;
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};
void append_to(std::string& out, const Shape& shape);  // "[2, 3]"
std::ostream& operator<<(std::ostream& out, const Shape& shape);

// Strides of a dense row-major array of `shape`.
Shape contiguous_strides(const Shape& shape);

}  // namespace headrace
