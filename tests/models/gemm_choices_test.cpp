// Which kernels the GEMMs of models get, against a table: gemm_choices.txt. A line is
//   model | GEMM | device | mode | M kernels, M-M kernels (kernels before), ...
// "(kernels before)" stands where an older release chose others; the last test says for which reasons it may.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "headrace/models/model_gemms.h"
#include "headrace/models/model_registry.h"
#include "headrace/ops/cuda/gemm/sm90/gemm_sequence_plan.h"
#include "headrace/ops/cuda/limits.h"
#include "support/safetensors_writer.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

using cuda::choose_gemm;

constexpr std::array<int64_t, 11> kM = {1, 2, 3, 4, 8, 16, 32, 64, 128, 512, 16384};

struct NamedModel {
  std::string name;
  std::vector<ModelGemm> gemms;
  bool small = false;  // a golden model: the table has it on an H200 alone
};

std::vector<ModelGemm> gemms_of(const std::filesystem::path& directory) {
  return stated_gemms(read_description(directory, 1), {.dtype = DType::kBF16, .random_weights = 1});
}

// Published sizes of families that bench/shapes lacks.
struct Published {
  const char *name, *config;
};
constexpr std::array kPublished = {
    Published{"Llama-3.2-1B", R"("architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256)"},
    Published{"Llama-3.1-70B",
              R"("architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256)"},
    Published{"Qwen2.5-7B", R"("architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944,
      "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064)"},
    Published{"Qwen3-0.6B", R"("architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 3072,
      "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936)"}};

std::vector<NamedModel> models() {
  std::vector<NamedModel> all;
  for (const char* folder : {"bench/shapes", "tests/golden"}) {
    for (const auto& entry : std::filesystem::directory_iterator(testing_support::source_tree() / folder)) {
      if (!std::filesystem::exists(entry.path() / "config.json")) continue;
      all.push_back({.name = entry.path().filename().string(),
                     .gemms = gemms_of(entry.path()),
                     .small = std::string_view(folder) == "tests/golden"});
    }
  }
  for (const Published& published : kPublished) {
    const test::TempDir folder;
    test::write_file(folder / "config.json",
                     R"({"num_hidden_layers": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
                         "rope_theta": 1e6, )" +
                         std::string(published.config) + "}");
    all.push_back({published.name, gemms_of(folder.path())});
  }
  std::ranges::sort(all, {}, &NamedModel::name);
  return all;
}

struct Cell {
  int64_t first, last;
  std::string now, before;
};
struct Line {
  std::string key;  // "model | GEMM | device | mode"
  std::vector<Cell> cells;
};

std::vector<Line> read_table() {
  std::ifstream in(testing_support::source_tree() / "tests/models/gemm_choices.txt");
  std::vector<Line> lines;
  for (std::string text; std::getline(in, text);) {
    const size_t bar = text.rfind(" | ");
    Line line{.key = text.substr(0, bar), .cells = {}};
    std::string cells = text.substr(bar + 3) + ", ";
    for (size_t end; (end = cells.find(", ")) != std::string::npos; cells.erase(0, end + 2)) {
      const std::string cell = cells.substr(0, end);
      const size_t space = cell.find(' '), bracket = cell.find(" ("), dash = cell.substr(0, space).find('-');
      const int64_t first = std::stoll(cell);
      line.cells.push_back(
          {.first = first,
           .last = dash == std::string::npos ? first : std::stoll(cell.substr(dash + 1)),
           .now = cell.substr(space + 1, bracket == std::string::npos ? bracket : bracket - space - 1),
           .before = bracket == std::string::npos ? "" : cell.substr(bracket + 2, cell.size() - bracket - 3)});
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// Returns the cells of a line of the table, as the code chooses: "1-4 sequence, 8-64 small_m".
std::string chosen_cells(cuda::GemmProblem problem, const cuda::DeviceProperties& device) {
  std::string text, last;
  int64_t first = 0, before = 0;
  const auto end_cell = [&] {
    if (last.empty()) return;
    const std::string span = std::to_string(first) + (first == before ? "" : "-" + std::to_string(before));
    text += (text.empty() ? "" : ", ") + span + " " + last;
  };
  for (const int64_t m : kM) {
    problem.m = m;
    const std::string now = kernel_names(choose_gemm(problem, device));
    if (now != last) end_cell(), first = m, last = now;
    before = m;
  }
  end_cell();
  return text;
}

TEST(GemmChoices, AreThoseOfTheTable) {
  const std::vector<Line> table = read_table();
  ASSERT_GE(table.size(), 400U);
  size_t found = 0;
  for (const NamedModel& model : models()) {
    for (ModelGemm gemm : model.gemms) {
      for (const bool capped : {false, true}) {
        if (capped && model.small) continue;
        cuda::DeviceProperties device = cuda::kH200;
        if (capped) device.arch = 80, device.shared_bytes_of_block = cuda::kLeastSharedBytes;
        for (const Determinism mode : {Determinism::kFast, Determinism::kStrict}) {
          gemm.problem.mode = mode;
          const std::string key = model.name + " | " + gemm.name + (capped ? " | sm_80" : " | h200") +
                                  (mode == Determinism::kFast ? " | default" : " | batch-invariant");
          const auto at = std::ranges::find(table, key, &Line::key);
          if (at == table.end()) {
            ADD_FAILURE() << "the table lacks the line\n" << key << " | " << chosen_cells(gemm.problem, device);
            continue;
          }
          const Line& line = *at;
          ++found;
          for (const int64_t m : kM) {
            const auto cell =
                std::ranges::find_if(line.cells, [m](const Cell& c) { return c.first <= m && m <= c.last; });
            ASSERT_NE(cell, line.cells.end()) << line.key << ", M " << m;
            gemm.problem.m = m;
            EXPECT_EQ(kernel_names(choose_gemm(gemm.problem, device)), cell->now) << line.key << ", M " << m;
          }
        }
      }
    }
  }
  EXPECT_EQ(found, table.size()) << "the table has lines of no model, or twice the same";
}

// The skinny GEMM left sm_90, and sequences of more than four tokens are gone: nothing else may have changed.
TEST(GemmChoices, ChangedOnlyWhereAFamilyWasDeleted) {
  const auto has = [](const std::string& kernels, const char* name) { return kernels.find(name) != std::string::npos; };
  int changed = 0;
  for (const Line& line : read_table()) {
    for (const Cell& cell : line.cells) {
      if (cell.before.empty()) continue;
      ++changed;
      EXPECT_TRUE(has(line.key, "| h200 |")) << line.key;
      const bool long_sequence = cell.before == "sequence" && cell.first > cuda::GemmSequencePlan::kMostRows;
      EXPECT_TRUE(has(cell.before, "skinny") || long_sequence) << line.key << ": " << cell.before;
      EXPECT_FALSE(has(cell.now, "skinny") || has(cell.now, "sequence")) << line.key << ": " << cell.now;
    }
  }
  EXPECT_GT(changed, 0);
}

TEST(GemmChoices, EveryRegisteredFamilyIsInTheTable) {
  std::set<std::string> missing;
  for (const std::string_view name : architecture_names()) missing.emplace(name);
  for (const char* folder : {"bench/shapes", "tests/golden"}) {
    for (const auto& entry : std::filesystem::directory_iterator(testing_support::source_tree() / folder)) {
      if (!std::filesystem::exists(entry.path() / "config.json")) continue;
      missing.erase(stated_info(read_description(entry.path(), 1), {.random_weights = 1}).architecture);
    }
  }
  EXPECT_TRUE(missing.empty()) << *missing.begin();
}

}  // namespace
}  // namespace headrace
