#include "explain.h"

#include <array>

#include "explain_text.h"
#include "headrace/core/error.h"

namespace headrace::app {
namespace {

struct ExplainedOp {
  std::string_view name;
  std::string (*explain)(const ExplainText&, Output);
};
constexpr std::array kOps = {ExplainedOp{"gemm", explain_gemm}, ExplainedOp{"attention", explain_attention}};

const ExplainedOp* find(const ExplainText& text) {
  for (const ExplainedOp& op : kOps) {
    if (op.name == text.op()) return &op;
  }
  return nullptr;
}

}  // namespace

bool is_call(const std::string& text) { return find(ExplainText(text.substr(0, text.find(' ')))) != nullptr; }

std::string explain_call(const std::string& text, Output output) {
  const ExplainText call(text);
  const ExplainedOp* op = find(call);
  std::string names;
  for (const ExplainedOp& known : kOps) names += (names.empty() ? "" : ", ") + std::string(known.name);
  HR_REQUIRE(op != nullptr, ErrorCode::kInvalidArgument, "--explain: '", call.op(),
             "' is no op, expected one of: ", names, "; headrace doctor MODEL --explain explains a model");
  return op->explain(call, output);
}

}  // namespace headrace::app
