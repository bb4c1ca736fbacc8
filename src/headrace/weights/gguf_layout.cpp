#include "headrace/weights/gguf_layout.h"

namespace headrace {

void append_rows(RowOrder& order, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) order.push_back(static_cast<int32_t>(first + i));
}

RowOrder inverse_of(const RowOrder& order) {
  RowOrder inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) inverse[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  return inverse;
}

RowOrder llama_rows(int64_t rows, int64_t heads) {
  RowOrder order;
  const int64_t dim = rows / heads;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t within = i % dim;
    order.push_back(static_cast<int32_t>(i - within + 2 * (within % (dim / 2)) + within / (dim / 2)));
  }
  return order;
}

bool moves_value_heads(const GgufSizes& s) {
  return s.architecture.starts_with("qwen35") && s.num_v_heads != s.num_k_heads;
}

int64_t place_of_value_head(const GgufSizes& s, int64_t head) {
  const int64_t r = s.num_v_heads / s.num_k_heads;
  return s.architecture.starts_with("qwen35") ? head % r * s.num_k_heads + head / r : head;
}

RowOrder value_head_rows(const GgufSizes& s, int64_t first, int64_t unit) {
  RowOrder order;
  append_rows(order, 0, first);
  for (int64_t head = 0; head < s.num_v_heads; ++head) {
    append_rows(order, first + place_of_value_head(s, head) * unit, unit);
  }
  return order;
}

std::pair<RowOrder, RowOrder> rows_of_grouped_qkvz(const GgufSizes& s) {
  const int64_t dk = s.head_k_dim, dv = s.value_dim() / s.num_k_heads, all = 2 * (dk + dv);
  RowOrder mixed, z;
  for (const auto& [first, count] : {std::pair{int64_t{0}, dk}, {dk, dk}, {2 * dk, dv}}) {
    for (int64_t g = 0; g < s.num_k_heads; ++g) append_rows(mixed, g * all + first, count);
  }
  for (int64_t g = 0; g < s.num_k_heads; ++g) append_rows(z, g * all + 2 * dk + dv, dv);
  return {std::move(mixed), std::move(z)};
}

std::pair<RowOrder, RowOrder> rows_of_grouped_ba(const GgufSizes& s) {
  const int64_t r = s.num_v_heads / s.num_k_heads;
  RowOrder b, a;
  for (int64_t g = 0; g < s.num_k_heads; ++g) {
    append_rows(b, 2 * r * g, r);
    append_rows(a, 2 * r * g + r, r);
  }
  return {std::move(b), std::move(a)};
}

}  // namespace headrace
