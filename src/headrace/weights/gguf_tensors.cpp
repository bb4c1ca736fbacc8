#include "headrace/weights/gguf_tensors.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/weights/gguf_layout.h"

namespace headrace {
namespace {

// A number, or the largest of a list with one per layer.
int64_t size_at(const GgufHeader& header, std::string_view key, int64_t fallback) {
  if (!header.has(key)) return fallback;
  const bool is_list = std::holds_alternative<GgufArray>(*header.value(key));
  const auto* const list = is_list ? header.integers(key) : nullptr;
  const bool empty = list != nullptr && list->empty();
  const int64_t value = empty ? 0 : list != nullptr ? std::ranges::max(*list) : *header.integer(key);
  constexpr int64_t kMost = int64_t{1} << 20;
  HR_REQUIRE(value > 0 && value <= kMost, ErrorCode::kModelFile, header.file(), ": key '", key, "' is ", value,
             ", expected 1 to ", kMost);
  return value;
}

GgufSizes sizes_of(const GgufHeader& header) {
  GgufSizes s{.architecture = header.text("general.architecture").value_or("")};
  const auto at = [&](std::string_view key, int64_t fallback) {
    return size_at(header, str(s.architecture, ".", key), fallback);
  };
  s.trunk_layers = at("block_count", 1);
  if (const auto extra = header.integer(str(s.architecture, ".nextn_predict_layers"))) s.trunk_layers -= *extra;
  s.heads = at("attention.head_count", 1), s.kv_heads = at("attention.head_count_kv", s.heads);
  if (!header.has(str(s.architecture, ".ssm.time_step_rank"))) return s;
  s.num_v_heads = at("ssm.time_step_rank", 1), s.num_k_heads = at("ssm.group_count", s.num_v_heads);
  s.head_k_dim = at("ssm.state_size", 1);
  const int64_t inner = at("ssm.inner_size", s.num_v_heads * s.head_k_dim);
  HR_REQUIRE(inner % s.num_v_heads == 0 && s.num_v_heads % s.num_k_heads == 0, ErrorCode::kModelFile, header.file(),
             ": keys '", s.architecture, ".ssm.*': ", inner, " values in ", s.num_v_heads, " heads of ", s.num_k_heads,
             " groups do not divide");
  s.head_v_dim = inner / s.num_v_heads;
  return s;
}

using Values = StoredTensor::Values;
using Order = RowOrder;

// One file's tensor on its way to those that Hugging Face's checkpoint has in its place.
class Import {
 public:
  Import(const GgufFile& file, const GgufTensor& tensor, NamedTensors& out)
      : out_(out), whole_(stored_tensor_of(file, tensor)) {}

  const std::string& name() const { return whole_.name; }
  const Shape& shape() const { return whole_.shape; }
  int64_t rows() const { return whole_.rows(); }
  int64_t columns() const { return whole_.columns(); }

  void require(bool holds, std::string_view expected) const {
    HR_REQUIRE(holds, ErrorCode::kModelFile, *whole_.file, ": tensor '", printable(whole_.name), "' has shape ",
               whole_.shape, " in Hugging Face's order, expected ", expected);
  }
  // All rows, or elements of a vector, in `order` if it is not empty.
  StoredTensor& add(std::string name, Order order = {}) {
    StoredTensor& added = out_.emplace_back(std::move(name), whole_).second;
    (whole_.shape.rank() == 1 ? added.column_order : added.row_order) = std::move(order);
    return added;
  }
  // The rows in `order` as a matrix of their own.
  void add_rows(std::string name, Order order) {
    const auto count = static_cast<int64_t>(order.size());
    add(std::move(name), std::move(order)).shape = {count, columns()};
  }
  // Rows [first, first + count) as a matrix of their own.
  void add_slice(std::string name, int64_t first, int64_t count) {
    out_.emplace_back(std::move(name), matrix_of_rows(whole_, first, count));
  }

 private:
  NamedTensors& out_;
  StoredTensor whole_;
};

void add_renamed(Import& tensor, const GgufSizes& s, std::string_view name, std::string to) {
  Order order;
  if (s.architecture == "llama" && is_query_or_key(name)) {
    const int64_t heads = name.starts_with("attn_q.") ? s.heads : s.kv_heads;
    tensor.require(tensor.shape()[0] % (2 * heads) == 0, str("rows of ", heads, " heads"));
    order = llama_rows(tensor.shape()[0], heads);
  }
  StoredTensor& added = tensor.add(std::move(to), std::move(order));
  if (s.is_hybrid() && is_shifted_norm(name)) added.values = Values::kMinusOne;
}

void add_output_projection(Import& tensor, const GgufSizes& s, const std::string& gdn) {
  tensor.require(tensor.columns() == s.value_dim(), str(s.value_dim(), " columns"));
  StoredTensor& added = tensor.add(gdn + "out_proj.weight");
  if (!moves_value_heads(s)) return;
  for (int64_t head = 0; head < s.num_v_heads; ++head) {
    added.column_order.push_back(static_cast<int32_t>(place_of_value_head(s, head)));
  }
  added.column_unit = static_cast<int32_t>(s.head_v_dim);
}

void add_ba(Import& tensor, const GgufSizes& s, const std::string& gdn) {
  tensor.require(tensor.rows() == 2 * s.num_v_heads, str(2 * s.num_v_heads, " rows"));
  auto [b, a] = rows_of_grouped_ba(s);
  tensor.add_rows(gdn + "in_proj_b.weight", std::move(b));
  tensor.add_rows(gdn + "in_proj_a.weight", std::move(a));
}

void add_qkvz(Import& tensor, const GgufSizes& s, const std::string& gdn) {
  const int64_t rows = 2 * (s.key_dim() + s.value_dim());
  tensor.require(tensor.rows() == rows, str(rows, " rows"));
  auto [mixed, z] = rows_of_grouped_qkvz(s);
  tensor.add_rows(gdn + "in_proj_qkv.weight", std::move(mixed));
  tensor.add_rows(gdn + "in_proj_z.weight", std::move(z));
}

// Returns true if the tensor is of a Gated DeltaNet layer.
bool add_gdn(Import& tensor, const GgufSizes& s, std::string_view name, const std::string& layer) {
  const std::string gdn = layer + "linear_attn.";
  const auto rows = [&](std::string_view to, int64_t first, int64_t unit) -> StoredTensor& {
    const int64_t expected = first + s.num_v_heads * unit;
    tensor.require(tensor.shape()[0] == expected, str(expected, " rows"));
    return tensor.add(gdn + std::string(to), moves_value_heads(s) ? value_head_rows(s, first, unit) : Order());
  };
  if (name == "attn_qkv.weight") {
    rows("in_proj_qkv.weight", 2 * s.key_dim(), s.head_v_dim);
  } else if (name == "attn_gate.weight") {
    rows("in_proj_z.weight", 0, s.head_v_dim);
  } else if (name == "ssm_beta.weight") {
    rows("in_proj_b.weight", 0, 1);
  } else if (name == "ssm_alpha.weight") {
    rows("in_proj_a.weight", 0, 1);
  } else if (name == "ssm_ba.weight") {
    add_ba(tensor, s, gdn);
  } else if (name == "ssm_in.weight") {
    add_qkvz(tensor, s, gdn);
  } else if (name == "ssm_conv1d.weight") {
    StoredTensor& added = rows("conv1d.weight", 2 * s.key_dim(), s.head_v_dim);
    added.shape = {tensor.rows(), 1, tensor.columns()};
  } else if (name == "ssm_a") {
    rows("A_log", 0, 1).values = Values::kLogOfNegative;
  } else if (name == "ssm_dt.bias") {
    rows("dt_bias", 0, 1);
  } else if (name == "ssm_out.weight") {
    add_output_projection(tensor, s, gdn);
  } else {
    return false;
  }
  return true;
}

// Queries, keys and values of full attention in one matrix, as newer converters write them.
void add_fused_qkv(Import& tensor, const GgufSizes& s, const std::string& layer) {
  const int64_t gates = s.is_hybrid() ? 2 : 1, heads = gates * s.heads + 2 * s.kv_heads;
  tensor.require(tensor.rows() % heads == 0, str("rows of ", heads, " heads"));
  const int64_t dim = tensor.rows() / heads, q = gates * s.heads * dim, kv = s.kv_heads * dim;
  tensor.add_slice(layer + "self_attn.q_proj.weight", 0, q);
  tensor.add_slice(layer + "self_attn.k_proj.weight", q, kv);
  tensor.add_slice(layer + "self_attn.v_proj.weight", q + kv, kv);
}

// Experts lie in one tensor of three dimensions; Hugging Face's are matrices of their own.
bool add_experts(Import& tensor, std::string_view name, const std::string& layer) {
  std::vector<std::string_view> parts;
  if (name == "ffn_gate_exps.weight") parts = {"gate_proj"};
  if (name == "ffn_up_exps.weight") parts = {"up_proj"};
  if (name == "ffn_down_exps.weight") parts = {"down_proj"};
  if (name == "ffn_gate_up_exps.weight") parts = {"gate_proj", "up_proj"};
  if (parts.empty()) return false;
  const auto count = static_cast<int64_t>(parts.size());
  tensor.require(tensor.shape().rank() == 3 && tensor.shape()[1] % count == 0, "three dimensions, experts first");
  const int64_t rows = tensor.shape()[1] / count;
  for (int64_t e = 0; e < tensor.shape()[0]; ++e) {
    for (int64_t part = 0; part < count; ++part) {
      tensor.add_slice(str(layer, "mlp.experts.", e, ".", parts[static_cast<size_t>(part)], ".weight"),
                       (e * count + part) * rows, rows);
    }
  }
  return true;
}

struct LayerName {
  int64_t layer;
  std::string_view rest;
};

// "blk.12.attn_q.weight"
std::optional<LayerName> parse_layer(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<size_t>(end - name.data());
  if (error != std::errc() || layer < 0 || digits >= name.size() || name[digits] != '.') return std::nullopt;
  return LayerName{layer, name.substr(digits + 1)};
}

void add_of_layer(Import& tensor, const GgufSizes& s, const LayerName& name, bool is_recurrent) {
  if (name.layer >= s.trunk_layers) return static_cast<void>(tensor.add(str("mtp.", tensor.name())));
  const std::string layer = str("model.layers.", name.layer, ".");
  if (name.rest == "attn_qkv.weight" && !is_recurrent) return add_fused_qkv(tensor, s, layer);
  if (s.is_hybrid() && add_gdn(tensor, s, name.rest, layer)) return;
  if (add_experts(tensor, name.rest, layer)) return;
  if (name.rest == "ffn_gate_inp_shexp.weight") {
    const int64_t hidden = tensor.columns();
    tensor.add(layer + "mlp.shared_expert_gate.weight").shape = {1, hidden};
    return;
  }
  const auto* const renamed = std::ranges::find(kGgufLayerNames, name.rest, &GgufLayerName::gguf);
  if (renamed == kGgufLayerNames.end()) return static_cast<void>(tensor.add(tensor.name()));
  add_renamed(tensor, s, name.rest, layer + std::string(renamed->huggingface));
}

void add_outside_layers(Import& tensor, const GgufSizes& s) {
  if (tensor.name() == "token_embd.weight") {
    tensor.add("model.embed_tokens.weight");
  } else if (tensor.name() == "output.weight") {
    tensor.add("lm_head.weight");
  } else if (tensor.name() == "output_norm.weight") {
    tensor.add("model.norm.weight").values = s.is_hybrid() ? Values::kMinusOne : Values::kAsStored;
  } else if (tensor.name() == "rope_freqs.weight") {
    tensor.add("model.rotary_emb.inv_freq");  // the configuration states them
  } else {
    tensor.add(tensor.name());
  }
}

}  // namespace

StoredTensor stored_tensor_of(const GgufFile& file, const GgufTensor& tensor) {
  StoredTensor stored;
  stored.file = &file.header().file();
  stored.name = tensor.name;
  stored.type = tensor.type->name;
  stored.dtype = tensor.type->dtype, stored.format = tensor.type->format;
  stored.data = file.data(tensor);
  std::vector<int64_t> dims;
  for (auto dim = tensor.dims.rbegin(); dim != tensor.dims.rend(); ++dim) dims.push_back(static_cast<int64_t>(*dim));
  stored.shape = Shape(std::span<const int64_t>(dims));
  return stored;
}

NamedTensors huggingface_tensors(const std::vector<GgufFile>& files) {
  const GgufSizes sizes = sizes_of(files.front().header());
  const auto is_recurrent = [&](int64_t layer) {
    const std::string conv = str("blk.", layer, ".ssm_conv1d.weight");
    return std::ranges::any_of(files, [&](const GgufFile& f) { return f.header().find_tensor(conv) != nullptr; });
  };
  NamedTensors out;
  for (const GgufFile& file : files) {
    for (const GgufTensor& stored : file.header().tensors()) {
      Import tensor(file, stored, out);
      if (const auto name = parse_layer(stored.name)) {
        add_of_layer(tensor, sizes, *name, is_recurrent(name->layer));
      } else {
        add_outside_layers(tensor, sizes);
      }
    }
  }
  return out;
}

}  // namespace headrace
