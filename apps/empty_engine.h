// An engine whose model does nothing, so that a step's time is the host's work.
#pragma once
#include <optional>
#include <string>

#include "bench/fake_device.h"
#include "headrace/engine/engine.h"

namespace headrace::app {

struct EmptyEngineKind {
  enum class Layers : uint8_t { kDense, kHybrid } layers = Layers::kDense;
  enum class Path : uint8_t { kCpu, kFakeDevice } path = Path::kCpu;

  std::string name() const;  // "dense cpu", "hybrid fake device"
};

// Its layers and its vocabulary are so small that they take no time.
class EmptyModel final : public Model {
 public:
  // `runtime` is not owned.
  EmptyModel(EmptyEngineKind::Layers layers, DeviceRuntime& runtime);
  const ModelInfo& info() const override { return info_; }
  Tensor forward(const ForwardBatch& batch) const override;

 private:
  ModelInfo info_;
  DeviceRuntime& runtime_;
};

// The fake device decides token 0 for every row.
class EmptyEngine {
 public:
  // `config` without a place: backend, runtime and ops are set here.
  EmptyEngine(EmptyEngineKind kind, EngineConfig config);
  Engine& engine() { return engine_; }
  const ModelInfo& model_info() const { return model_.info(); }

 private:
  EngineConfig placed(EngineConfig config);

  std::optional<bench::FakeDevice> device_;  // absent on the CPU's path
  EmptyModel model_;
  Engine engine_;
};

}  // namespace headrace::app
