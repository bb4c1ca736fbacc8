// headrace doctor --explain: which kernels an H200 runs for a call, or for the GEMMs of a model. No device is asked.
#pragma once
#include <filesystem>
#include <string>

#include "commands.h"

namespace headrace::app {

class ExplainText;

// Reads "gemm m=8 n=9728 k=2560" or "attention ...", and returns a line or a JSON object. Error kInvalidArgument, one
// sentence.
std::string explain_call(const std::string& text, Output output);
// True if `text` begins with the name of an op that explain_call() knows.
bool is_call(const std::string& text);
// Reads config.json alone. Errors as stated_gemms.
std::string explain_model(const std::filesystem::path& directory, Output output);

// gemm m= n=N[,N...] k= [dtype=bf16|fp16|fp32] [mode=default|batch-invariant] [norm] [swiglu] [bias] [residual]
// [fp32-result]
std::string explain_gemm(const ExplainText& text, Output output);
// attention heads= kv_heads= dim= requests= tokens= keys= [kv=bf16|fp8] [mode=default|batch-invariant] [window]
// [soft-cap]
std::string explain_attention(const ExplainText& text, Output output);

}  // namespace headrace::app
