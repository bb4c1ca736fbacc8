#include "headrace/weights/gguf_export.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "headrace/core/block_quantizer.h"
#include "headrace/core/error.h"
#include "headrace/core/parallel.h"
#include "headrace/core/printable.h"
#include "headrace/weights/text_layout.h"

namespace headrace {
namespace {

using Changed = StoredTensor::Values;
using Exports = std::vector<GgufExport>;

void require_shape(const StoredTensor& stored, bool holds, std::string_view expected) {
  HR_REQUIRE(holds, ErrorCode::kModelFile, *stored.file, ": tensor '", printable(stored.name), "' has shape ",
             stored.shape, ", expected ", expected);
}

// One layer's tensors on their way into the file.
class LayerExport {
 public:
  LayerExport(const GgufSizes& sizes, int64_t layer, Exports& out)
      : sizes_(sizes), prefix_(str("blk.", layer, ".")), out_(out) {}

  // `name`: behind "model.layers.N.". Returns false if files do not have it.
  bool add(std::string_view name, const StoredTensor& stored) {
    return add_renamed(name, stored) || add_delta_net(name, stored) || add_experts(name, stored) ||
           add_shared_gate(name, stored);
  }

 private:
  GgufExport& put(std::string_view name, StoredTensor stored) {
    const Shape shape = stored.shape;
    return out_.emplace_back(
        GgufExport{.name = prefix_ + std::string(name), .shape = shape, .parts = {std::move(stored)}});
  }
  // In the file, row i, or element i of a vector, is row order[i] of the checkpoint.
  void put_in_order(std::string_view name, StoredTensor stored, RowOrder order) {
    (stored.shape.rank() == 1 ? stored.column_order : stored.row_order) = std::move(order);
    put(name, std::move(stored));
  }
  // As put_in_order, with some of the rows.
  void put_rows(std::string_view name, StoredTensor stored, RowOrder order) {
    stored.shape = {static_cast<int64_t>(order.size()), stored.columns()};
    put_in_order(name, std::move(stored), std::move(order));
  }

  bool add_renamed(std::string_view name, const StoredTensor& stored) {
    for (const GgufLayerName& each : kGgufLayerNames) {
      if (each.huggingface != name) continue;
      // Two names of files are one in checkpoints.
      const bool is_post_norm = name == "post_attention_layernorm.weight";
      if (is_post_norm && sizes_.is_hybrid() != (each.gguf == "post_attention_norm.weight")) continue;
      StoredTensor changed = stored;
      if (sizes_.is_hybrid() && is_shifted_norm(each.gguf)) changed.values = Changed::kPlusOne;
      put_in_order(each.gguf, std::move(changed), attention_rows(each.gguf, stored));
      return true;
    }
    return false;
  }

  RowOrder attention_rows(std::string_view gguf, const StoredTensor& stored) const {
    if (sizes_.architecture != "llama" || !is_query_or_key(gguf)) return {};
    const int64_t heads = gguf.starts_with("attn_q.") ? sizes_.heads : sizes_.kv_heads;
    require_shape(stored, stored.shape[0] % (2 * heads) == 0, str("rows of ", heads, " heads"));
    return inverse_of(llama_rows(stored.shape[0], heads));
  }

  bool add_delta_net(std::string_view name, const StoredTensor& stored) {
    constexpr std::string_view kPrefix = "linear_attn.";
    if (!sizes_.is_hybrid() || !name.starts_with(kPrefix)) return false;
    name.remove_prefix(kPrefix.size());
    return sizes_.architecture == "qwen3next" ? add_grouped(name, stored) || add_common_delta_net(name, stored)
                                              : add_separate(name, stored) || add_common_delta_net(name, stored);
  }

  // Rows, or elements, of value heads behind `first` others.
  void put_value_heads(std::string_view name, const StoredTensor& stored, int64_t first, int64_t unit) {
    const int64_t expected = first + sizes_.num_v_heads * unit;
    require_shape(stored, stored.shape[0] == expected, str(expected, " rows"));
    put_in_order(name, stored,
                 moves_value_heads(sizes_) ? inverse_of(value_head_rows(sizes_, first, unit)) : RowOrder());
  }

  bool add_grouped(std::string_view name, const StoredTensor& stored) {
    if (name == "in_proj_ba.weight") return put("ssm_ba.weight", stored), true;
    if (name != "in_proj_qkvz.weight") return false;
    const int64_t expected = 2 * (sizes_.key_dim() + sizes_.value_dim());
    require_shape(stored, stored.shape[0] == expected, str(expected, " rows"));
    auto [mixed, z] = rows_of_grouped_qkvz(sizes_);
    put_rows("attn_qkv.weight", stored, std::move(mixed));
    put_rows("attn_gate.weight", stored, std::move(z));
    return true;
  }

  bool add_separate(std::string_view name, const StoredTensor& stored) {
    if (name == "in_proj_qkv.weight") {
      put_value_heads("attn_qkv.weight", stored, 2 * sizes_.key_dim(), sizes_.head_v_dim);
    } else if (name == "in_proj_z.weight") {
      put_value_heads("attn_gate.weight", stored, 0, sizes_.head_v_dim);
    } else if (name == "in_proj_b.weight") {
      put_value_heads("ssm_beta.weight", stored, 0, 1);
    } else if (name == "in_proj_a.weight") {
      put_value_heads("ssm_alpha.weight", stored, 0, 1);
    } else {
      return false;
    }
    return true;
  }

  bool add_common_delta_net(std::string_view name, const StoredTensor& stored) {
    if (name == "conv1d.weight") {
      require_shape(stored, stored.shape.rank() == 3 && stored.shape[1] == 1, "three dimensions, the second one 1");
      StoredTensor squeezed = stored;
      squeezed.shape = {stored.shape[0], stored.shape[2]};
      put_value_heads("ssm_conv1d.weight", squeezed, 2 * sizes_.key_dim(), sizes_.head_v_dim);
    } else if (name == "A_log") {
      put_value_heads("ssm_a", stored, 0, 1);
      out_.back().parts.front().values = Changed::kNegativeExp;
    } else if (name == "dt_bias") {
      put_value_heads("ssm_dt.bias", stored, 0, 1);
    } else if (name == "out_proj.weight") {
      add_output_projection(stored);
    } else {
      return false;
    }
    return true;
  }

  void add_output_projection(const StoredTensor& stored) {
    require_shape(stored, stored.columns() == sizes_.value_dim(), str(sizes_.value_dim(), " columns"));
    StoredTensor moved = stored;
    if (moves_value_heads(sizes_)) {
      moved.column_order = inverse_of(value_head_rows(sizes_, 0, 1));
      moved.column_unit = static_cast<int32_t>(sizes_.head_v_dim);
    }
    put("ssm_out.weight", std::move(moved));
  }

  // The file has one tensor of three dimensions for each of an expert's matrices; experts come in the order of their
  // numbers.
  void add_expert(std::string_view name, StoredTensor stored) {
    const std::string full = prefix_ + std::string(name);
    const auto found = std::ranges::find(out_, full, &GgufExport::name);
    GgufExport& all =
        found != out_.end()
            ? *found
            : out_.emplace_back(GgufExport{.name = full, .shape = {0, stored.rows(), stored.columns()}, .parts = {}});
    require_shape(stored, stored.rows() == all.shape[1] && stored.columns() == all.shape[2], "that of other experts");
    all.shape = {all.shape[0] + 1, all.shape[1], all.shape[2]};
    all.parts.push_back(std::move(stored));
  }

  bool add_experts(std::string_view name, const StoredTensor& stored) {
    constexpr std::string_view kPrefix = "mlp.experts.";
    if (!name.starts_with(kPrefix)) return false;
    name.remove_prefix(kPrefix.size());
    if (name == "gate_up_proj") return add_stacked_gate_up(stored), true;
    if (name == "down_proj") return put("ffn_down_exps.weight", stored), true;
    const std::string_view matrix = name.substr(std::min(name.find('.'), name.size() - 1) + 1);
    if (matrix == "gate_proj.weight") return add_expert("ffn_gate_exps.weight", stored), true;
    if (matrix == "up_proj.weight") return add_expert("ffn_up_exps.weight", stored), true;
    if (matrix == "down_proj.weight") return add_expert("ffn_down_exps.weight", stored), true;
    return false;
  }

  // [experts, gate rows and then up rows, hidden]
  void add_stacked_gate_up(const StoredTensor& stored) {
    require_shape(stored, stored.shape.rank() == 3 && stored.shape[1] % 2 == 0,
                  "three dimensions, the second one even");
    const int64_t rows = stored.shape[1] / 2;
    for (int64_t part = 0; part < 2; ++part) {
      for (int64_t e = 0; e < stored.shape[0]; ++e) {
        add_expert(part == 0 ? "ffn_gate_exps.weight" : "ffn_up_exps.weight",
                   matrix_of_rows(stored, (2 * e + part) * rows, rows));
      }
    }
  }

  bool add_shared_gate(std::string_view name, const StoredTensor& stored) {
    if (name != "mlp.shared_expert_gate.weight") return false;
    StoredTensor row = stored;
    row.shape = {stored.shape.numel()};
    put("ffn_gate_inp_shexp.weight", std::move(row));
    return true;
  }

  const GgufSizes& sizes_;
  std::string prefix_;
  Exports& out_;
};

struct LayerTensor {
  int64_t layer;
  std::string_view rest;
};

// "model.layers.12.mlp.gate.weight"
std::optional<LayerTensor> layer_tensor(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<size_t>(end - name.data());
  if (error != std::errc() || layer < 0 || digits >= name.size() || name[digits] != '.') return std::nullopt;
  return LayerTensor{layer, name.substr(digits + 1)};
}

// Numbers in names compare as numbers: expert 10 is behind expert 9.
struct ByNumbers {
  bool operator()(std::string_view a, std::string_view b) const {
    size_t i = 0, j = 0;
    while (i < a.size() && j < b.size()) {
      const auto [number_a, end_a] = item_at(a, i);
      const auto [number_b, end_b] = item_at(b, j);
      if (number_a != number_b) return number_a < number_b;
      i = end_a, j = end_b;
    }
    return a.size() - i < b.size() - j;
  }

 private:
  // A character counts as a number behind all that are spelled.
  static std::pair<uint64_t, size_t> item_at(std::string_view text, size_t at) {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
    if (error == std::errc()) return {number, static_cast<size_t>(end - text.data())};
    return {(uint64_t{1} << 32) + static_cast<unsigned char>(text[at]), at + 1};
  }
};

// Tensors by the names that a text model alone has, without those of other parts.
std::map<std::string, const StoredTensor*, ByNumbers> text_tensors(const Checkpoint& checkpoint) {
  const std::vector<std::string> names = checkpoint.names();
  const auto is_used = [&](const TextLayout& l) { return checkpoint.has(str(l.body, "embed_tokens.weight")); };
  const auto own = std::ranges::find_if(kTextLayouts, is_used);
  HR_REQUIRE(own != kTextLayouts.end(), ErrorCode::kModelFile, checkpoint.origin(),
             ": has no tensor 'model.embed_tokens.weight'");
  std::map<std::string, const StoredTensor*, ByNumbers> tensors;
  for (const std::string& name : names) {
    if (is_of_other_part(name)) continue;
    tensors.emplace(moved_name(name, *own, kTextLayouts.front()).value_or(name), &checkpoint.stored(name));
  }
  return tensors;
}

bool export_of_model(std::string_view name, const StoredTensor& stored, const GgufSizes& sizes, QuantModel::Head head,
                     Exports& out) {
  const auto put = [&](std::string_view gguf) -> GgufExport& {
    return out.emplace_back(GgufExport{.name = std::string(gguf), .shape = stored.shape, .parts = {stored}});
  };
  if (name == "model.embed_tokens.weight") {
    put("token_embd.weight");
  } else if (name == "lm_head.weight") {
    if (head == QuantModel::Head::kOwn) put("output.weight");
  } else if (name == "model.norm.weight") {
    put("output_norm.weight").parts.front().values = sizes.is_hybrid() ? Changed::kPlusOne : Changed::kAsStored;
  } else {
    return false;
  }
  return true;
}

// Layers of a kind have the same tensors; a model has an embedding, a norm and a head.
void require_complete(const Exports& all, const GgufSizes& sizes, QuantModel::Head head, const std::string& origin) {
  std::map<std::string_view, Shape> of_model;
  std::vector<std::map<std::string_view, Shape>> layers(static_cast<size_t>(sizes.trunk_layers));
  for (const GgufExport& tensor : all) {
    const auto of_layer = layer_tensor(tensor.name, "blk.");
    auto& place = of_layer ? layers[static_cast<size_t>(of_layer->layer)] : of_model;
    place.emplace(of_layer ? of_layer->rest : std::string_view(tensor.name), tensor.shape);
  }
  const auto require = [&](bool holds, const auto&... parts) {
    HR_REQUIRE(holds, ErrorCode::kModelFile, origin, ": ", parts...);
  };
  for (const char* name : {"token_embd.weight", "output_norm.weight", "output.weight"}) {
    const bool is_needed = std::string_view(name) != "output.weight" || head == QuantModel::Head::kOwn;
    require(!is_needed || of_model.contains(name), "has no tensor for '", name, "'");
  }
  std::map<bool, size_t> first_of_kind;
  for (size_t i = 0; i < layers.size(); ++i) {
    const size_t like = first_of_kind.emplace(layers[i].contains("ssm_a"), i).first->second;
    require(!layers[i].empty() && layers[i] == layers[like], "layers ", like, " and ", i,
            " have other tensors or shapes, expected the same");
  }
}

// --- Formats ---

bool is_always_float32(const GgufExport& tensor) {
  const std::string_view name = tensor.name;
  return tensor.shape.rank() == 1 || name.ends_with("_norm.weight") || name.ends_with("ssm_conv1d.weight") ||
         name.ends_with("ffn_gate_inp.weight") || !name.ends_with(".weight");
}

// --- Data ---

// Row i of all parts.
std::pair<const StoredTensor*, int64_t> row_at(const GgufExport& tensor, int64_t i) {
  const int64_t rows = tensor.parts.front().rows();
  return {&tensor.parts[static_cast<size_t>(i / rows)], i % rows};
}

// Wide types hold any finite number.
void require_holds(const StoredTensor& stored, const GgufType& type, const std::vector<float>& row) {
  const bool is_wide = type.dtype == DType::kF32 || type.dtype == DType::kBF16;
  if (!is_wide) return require_quantizable(stored, row, type.name);
  const auto bad = std::ranges::find_if(row, [](float value) { return !std::isfinite(value); });
  HR_REQUIRE(bad == row.end(), ErrorCode::kModelFile, *stored.file, ": tensor '", printable(stored.name), "' holds ",
             *bad, ", expected finite numbers");
}

void encode_row(const std::vector<float>& row, const GgufType& type, std::span<unsigned char> bytes) {
  if (type.format) return quantize(*type.format, row, bytes);
  const auto size = static_cast<size_t>(size_of(*type.dtype));
  for (size_t i = 0; i < row.size(); ++i) set_number(bytes.data() + i * size, *type.dtype, row[i]);
}

}  // namespace

std::vector<GgufExport> gguf_exports(const Checkpoint& checkpoint, const GgufSizes& sizes, QuantModel::Head head) {
  Exports out;
  for (const auto& [name, stored] : text_tensors(checkpoint)) {
    const auto of_layer = layer_tensor(name, "model.layers.");
    const bool known = of_layer && of_layer->layer < sizes.trunk_layers
                           ? LayerExport(sizes, of_layer->layer, out).add(of_layer->rest, *stored)
                           : export_of_model(name, *stored, sizes, head, out);
    HR_REQUIRE(known, ErrorCode::kUnsupported, *stored->file, ": tensor '", printable(stored->name),
               "' has no place in GGUF files of ", sizes.architecture);
  }
  require_complete(out, sizes, head, checkpoint.origin());
  return out;
}

const GgufType& gguf_type_for(const GgufExport& tensor, const GgufTarget& target, const QuantModel& model) {
  if (is_always_float32(tensor)) return gguf_type_of(DType::kF32);
  if (const DType* const floats = std::get_if<DType>(&target)) return gguf_type_of(*floats);
  const auto format = block_format_for(tensor.name, tensor.shape, std::get<QuantPreset>(target), model);
  if (format) return gguf_type_of(*format);
  const StoredTensor& stored = tensor.parts.front();
  const bool is_in_small_blocks = tensor.shape[tensor.shape.rank() - 1] % 32 == 0;
  return gguf_type_of(is_in_small_blocks ? stored.dtype.value_or(DType::kBF16) : DType::kF16);
}

void write_tensor(const GgufExport& tensor, const GgufType& type, GgufWriter& writer, int threads,
                  const std::function<void(int64_t)>& written) {
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  const int64_t columns = tensor.shape[tensor.shape.rank() - 1], rows = tensor.shape.numel() / columns;
  const int64_t row_bytes = columns / type.block_elements * type.block_bytes;
  const int64_t piece = std::clamp<int64_t>(kPieceBytes / row_bytes, 1, rows);
  std::vector<unsigned char> bytes(static_cast<size_t>(piece * row_bytes));
  for (int64_t begin = 0; begin < rows; begin += piece) {
    const int64_t count = std::min(piece, rows - begin);
    parallel_for(threads, count, [&](int64_t i) {
      std::vector<float> row = tensor.made;
      if (row.empty()) {
        const auto [stored, at] = row_at(tensor, begin + i);
        row.resize(static_cast<size_t>(columns));
        read_row(*stored, at, row);
        require_holds(*stored, type, row);
      }
      encode_row(row, type,
                 std::span(bytes).subspan(static_cast<size_t>(i * row_bytes), static_cast<size_t>(row_bytes)));
    });
    const auto done = static_cast<size_t>(count * row_bytes);
    writer.write(std::span(bytes).first(done));
    written(static_cast<int64_t>(done));
  }
}

}  // namespace headrace
