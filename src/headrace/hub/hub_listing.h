// The files of a repository on a hub.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/hub/hub_name.h"

namespace headrace {

struct HubFile {
  static constexpr int64_t kUnknownSize = -1;
  std::string name;             // its path in the repository, with slashes
  int64_t size = kUnknownSize;  // bytes
  std::string etag;             // its hash, as ContentHash reads it; empty: unknown
};

// Returns true if the file's size and hash are known.
bool is_checkable(const HubFile& file);

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;
};

// Reads what a hub answers to /api/models/NAME/revision/REVISION?blobs=true. `where` stands in errors. Error kModelFile
// where it is no such answer, or a file's name could lead out of the folder that the file is stored in.
HubListing parse_hub_listing(std::string_view json, std::string_view where);

// Returns the files that the model `name` needs. One in GGUF: its file or parts, the first one first; errors as
// choose_gguf. Else by name: weights in safetensors (once: no other formats, precisions or consolidated copies),
// configuration, tokenizer, chat templates; Error kUnsupported where no weights are in safetensors, naming what there
// is.
std::vector<HubFile> model_files(const HubListing& listing, const HubName& name);

}  // namespace headrace
