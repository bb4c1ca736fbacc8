#include "models/golden_runner.h"

#include <array>
#include <cmath>
#include <cstring>

#include "headrace/attention/backend_registry.h"
#include "headrace/core/device_runtime.h"
#include "headrace/weights/safetensors_file.h"

namespace headrace::test {

Tensor golden_tensor(const std::string& family, std::string_view name) {
  const SafetensorsFile file(golden_folder(family.substr(0, family.find("_released"))) / "golden.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) {
    if (entry.name != name) continue;
    const DType stored = *entry.dtype->dtype;
    const Tensor raw(stored, Shape(std::vector<int64_t>(entry.shape.begin(), entry.shape.end())));
    std::memcpy(raw.data(), file.data(entry), static_cast<size_t>(raw.bytes()));
    Tensor copy(stored == DType::kI64 ? DType::kI32 : DType::kF32, raw.shape());
    for (int64_t i = 0; i < raw.numel(); ++i) set_element(copy, i, element_as_double(raw, i));
    return copy;
  }
  throw Error(ErrorCode::kModelFile, str(file.name(), " has no ", name));
}

testing_support::Tolerance float32_tolerance(const Tensor& logits) {
  double largest = 1;
  for (int64_t i = 0; i < logits.numel(); ++i) largest = std::max(largest, std::abs(element_as_double(logits, i)));
  return {.abs = 1e-4 * largest};
}

GoldenRunner::GoldenRunner(const std::filesystem::path& directory, const OpSet& ops, DType dtype,
                           Determinism determinism, const std::optional<std::filesystem::path>& adapter,
                           DeviceRuntime& runtime, std::optional<DType> kv_dtype)
    : runtime_(runtime),
      model_(load_model(directory, {.dtype = dtype,
                                    .ops = &ops,
                                    .context = {.threads = 2, .determinism = determinism, .stream = runtime.stream()},
                                    .runtime = &runtime,
                                    .adapter = adapter})),
      kv_({.groups = model_->info().kv_groups, .num_pages = 8, .page_size = 16, .dtype = kv_dtype.value_or(dtype)},
          runtime),
      table_(1, 128, 16) {
  if (model_->info().num_gdn_layers > 0) {
    GDNPoolConfig config = model_->info().gdn;
    config.num_slots = 1;
    gdn_ = std::make_unique<GDNPool>(config, runtime);
  }
  // A set of a CPU's is one of its backend's; any other is a backend of its own name.
  const bool is_set = runtime.device().type == DeviceType::kCPU && ops.name != "reference";
  backend_ = make_backend(is_set ? "auto" : ops.name, runtime.device(),
                          {.kv_pool = &kv_,
                           .gdn_pool = gdn_.get(),
                           .full_attn_layer_ids = model_->info().full_attn_layer_ids,
                           .max_tokens = 128,
                           .runtime = &runtime,
                           .context = {.threads = 2, .determinism = determinism, .stream = runtime.stream()},
                           .kernel_set = is_set ? std::optional(std::string(ops.name)) : std::nullopt});
  if (runtime.device().type != DeviceType::kCPU) {
    device_batch_ = std::make_unique<DeviceBatch>(
        DeviceBatchConfig{.max_requests = 1, .max_tokens = 128, .table_rows = 2, .table_pages = 8, .page_size = 16},
        runtime);
  }
  table_.alloc();
  table_.write(1, 0, std::array{3, 1, 5, 2, 7, 4, 8, 6});
}

void GoldenRunner::run(const TensorView& ids, const Part& part, const TensorView& logits) {
  const int32_t count = part.end - part.begin;
  const bool decode = count == 1 && part.begin > 0 && part.kind == KeySpan::Kind::kCausal;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  ForwardBatch batch{.mode = decode ? ForwardMode::kDecode : ForwardMode::kExtend};
  for (int32_t i = 0; i < count; ++i) {
    positions.push_back(part.begin + i);
    slots.push_back(part.store == Part::Store::kYes ? table_.slot_of(1, part.begin + i) : kDoNotStore);
    if ((i + 1) % part.logits_every == 0) batch.logits_rows.push_back(i);
  }
  batch.attn = {.spans = {{.q_len = count,
                           .ctx_len = part.begin,
                           .phys0 = part.begin,
                           .kind = part.kind,
                           .block_size = part.block_size,
                           .window_from = part.kind == KeySpan::Kind::kFull ? KeySpan::WindowFrom::kSegment
                                                                            : KeySpan::WindowFrom::kRow,
                           .page_row = 1}},
                .page_table = table_.page_table(),
                .write_slots = TensorView(slots.data(), DType::kI64, {count}),
                .state_slots = {{.read = part.begin == 0 ? kNoState : 1, .write = 1}}};
  batch.soft = {.token_merge = part.token_merge, .self_conditioning = part.self_conditioning};
  batch.input_ids = ids.slice(part.begin, part.end);
  batch.positions = TensorView(positions.data(), DType::kI32, {count});
  batch.attn_backend = backend_.get();
  const ForwardBatch& placed = device_batch_ ? device_batch_->upload(batch) : batch;
  backend_->init_forward_metadata(placed);
  const Tensor logits_there = model_->forward(placed);
  const Tensor out(logits_there.dtype(), logits_there.shape());
  runtime_.copy_to_host(out.data(), logits_there.data(), static_cast<size_t>(out.bytes()));
  for (size_t r = 0; r < batch.logits_rows.size(); ++r) {
    const TensorView from = out.view().select(static_cast<int64_t>(r)),
                     to = logits.select(part.begin + batch.logits_rows[r]);
    for (int64_t i = 0; i < from.numel(); ++i) set_element(to, i, element_as_double(from, i));
  }
}

}  // namespace headrace::test
