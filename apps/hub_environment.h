// Settings of Hugging Face's hub and its cache, from the environment.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "headrace/hub/hub_settings.h"

namespace headrace::app {

// `path` with a "~" in front of it ("~", "~/models") replaced by $HOME; others stay, as do all without HOME.
std::filesystem::path with_home(std::string_view path);

// Returns the cache's directory: $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME or
// ~/.cache with huggingface/hub. A "~" at the beginning of a value is the home directory. Returns an empty path if none
// of these variables is set: the current directory is never searched.
std::filesystem::path hub_cache();

// Returns true if $HF_HUB_OFFLINE or $TRANSFORMERS_OFFLINE is 1, ON, YES or TRUE.
bool hub_is_offline();

// The hub of $HF_ENDPOINT, else Hugging Face's; certificates of $SSL_CERT_FILE, $CURL_CA_BUNDLE or $REQUESTS_CA_BUNDLE,
// and $SSL_CERT_DIR. The token is `token`, else $HF_TOKEN or $HUGGING_FACE_HUB_TOKEN, else what `hf auth login` stored
// ($HF_TOKEN_PATH, else the file `token` in $HF_HOME); $HF_HUB_DISABLE_IMPLICIT_TOKEN leaves out all but `token`.
HubSettings hub_settings(const std::string& token);

}  // namespace headrace::app
