#include "exam/broken_model.h"

#include <simdjson.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "exam/exam.h"

namespace headrace::exam {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void replace(std::string& text, std::string_view before, std::string_view after) {
  const size_t at = text.find(before);
  require(at != text.npos, str("no '", before, "' in the model's files"));
  text.replace(at, before.size(), after);
}

// The place of a tensor of 16-bit rows in a safetensors file.
struct Place {
  size_t begin = 0, bytes = 0;
  int64_t rows = 0, columns = 0;
};

Place place_of(std::string_view file, std::string_view name) {
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  const std::string text(file.substr(sizeof(header), header));
  const std::string path = str('/', name);
  const auto begin = static_cast<size_t>(number_at(text, path + "/data_offsets/0"));
  const auto end = static_cast<size_t>(number_at(text, path + "/data_offsets/1"));
  return {.begin = sizeof(header) + header + begin,
          .bytes = end - begin,
          .rows = number_at(text, path + "/shape/0"),
          .columns = number_at(text, path + "/shape/1")};
}

}  // namespace

BrokenModel::BrokenModel(const fs::path& model) {
  for (const fs::directory_entry& entry : fs::directory_iterator(model))
    fs::copy(entry.path(), directory_ / entry.path().filename().string());
  std::string index = bytes_of(model / "model.safetensors.index.json"), config = bytes_of(model / "config.json");
  const std::string shard = text_at(index, str("/weight_map/", kEmbedding));
  std::string file = bytes_of(model / shard);
  const Place place = place_of(file, kEmbedding);
  const std::string data = file.substr(place.begin, place.bytes);
  test::write_file(directory_ / "head.safetensors",
                   test::safetensors_bytes(str(R"({"lm_head.weight":{"dtype":"BF16","shape":[)", place.rows, ',',
                                               place.columns, R"(],"data_offsets":[0,)", place.bytes, "]}}"),
                                           data));
  const size_t row = place.bytes / static_cast<size_t>(place.rows);
  for (size_t i = 0; i < row; i += 2) file.replace(place.begin + row * static_cast<size_t>(token()) + i, 2, "\xc0\x7f");
  replace(index, str('"', kEmbedding, '"'), str(R"("lm_head.weight": "head.safetensors", ")", kEmbedding, '"'));
  replace(config, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  test::write_file(directory_ / shard, file);
  test::write_file(directory_ / "model.safetensors.index.json", index);
  test::write_file(directory_ / "config.json", config);
}

}  // namespace headrace::exam
