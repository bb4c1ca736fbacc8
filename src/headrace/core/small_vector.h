// A vector for lists that mostly have one element.
#pragma once
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace headrace {

// Holds a single element within itself, so a list of one allocates nothing. Elements are contiguous; adding
// one invalidates iterators.
template <class T>
class SmallVector {
 public:
  SmallVector() = default;
  SmallVector(std::initializer_list<T> elements) {
    for (const T& element : elements) emplace_back() = element;
  }
  SmallVector(std::vector<T> elements) : many_(std::move(elements)) {}  // NOLINT: a vector is accepted as it is

  T& emplace_back() {
    if (empty()) return one_.emplace();
    if (one_) many_.push_back(*std::exchange(one_, std::nullopt));
    return many_.emplace_back();
  }
  void push_back(T element) { emplace_back() = std::move(element); }

  size_t size() const { return one_ ? 1 : many_.size(); }
  bool empty() const { return size() == 0; }
  T* begin() { return one_ ? &*one_ : many_.data(); }
  T* end() { return begin() + size(); }
  const T* begin() const { return one_ ? &*one_ : many_.data(); }
  const T* end() const { return begin() + size(); }
  const T& operator[](size_t i) const { return begin()[i]; }
  T& front() { return *begin(); }
  T& back() { return *(end() - 1); }
  const T& front() const { return *begin(); }
  const T& back() const { return *(end() - 1); }

 private:
  std::optional<T> one_;  // of a list of one
  std::vector<T> many_;   // empty beside one_
};

}  // namespace headrace
