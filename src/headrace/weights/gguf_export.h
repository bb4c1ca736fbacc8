// The tensors of a checkpoint as a GGUF file has them: the inverse of gguf_tensors.h.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "headrace/gguf/gguf_writer.h"
#include "headrace/weights/checkpoint.h"
#include "headrace/weights/gguf_layout.h"
#include "headrace/weights/quant_preset.h"
#include "headrace/weights/stored_tensor.h"

namespace headrace {

// A tensor of the file to write. Its values are those of `parts`, one behind the other, or `made`.
struct GgufExport {
  std::string name;  // GGUF's
  Shape shape;       // the slowest dimension first
  std::vector<StoredTensor> parts;
  std::vector<float> made = {};
};

// Returns the tensors of the text model; parts of others and layers that predict several tokens are left out. `head`:
// kIsEmbedding leaves out a head that the checkpoint stores as well. They refer to the checkpoint. Error kUnsupported,
// naming it, for a tensor that files of the architecture do not have; kModelFile where tensors are missing.
std::vector<GgufExport> gguf_exports(const Checkpoint& checkpoint, const GgufSizes& sizes, QuantModel::Head head);

// Formats of a file's weights: a mix, or 16-bit floats.
using GgufTarget = std::variant<QuantPreset, DType>;

// Returns the type of a tensor. Vectors, norms, convolutions and routers are float32, as llama.cpp expects them. In a
// mix, other matrices without a block format have their stored dtype, or float16 where rows are no whole blocks.
const GgufType& gguf_type_for(const GgufExport& tensor, const GgufTarget& target, const QuantModel& model);

// Writes the tensor's data in `type`, some rows at a time. `written` is called with the bytes of each piece. Error
// kModelFile, naming file and tensor: a value that is no finite number or that `type` cannot hold; kIo as
// GgufWriter::write.
void write_tensor(const GgufExport& tensor, const GgufType& type, GgufWriter& writer, int threads,
                  const std::function<void(int64_t)>& written);

}  // namespace headrace
