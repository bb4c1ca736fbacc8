// The engine's errors in the words of the command line.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace headrace::app {

// `message`, an Error's, with the options of `command` where it begins with the engine's parameter ("top_p is 2, ..."),
// also behind "strategy 'name': "; a name that `command` has no option for stays, and so does one behind a path, which
// is the file's. The context is -c, the one request of a command has no number, and kernels of a GPU ask for the
// device.
std::string in_flags(const CLI::App& command, std::string message);

}  // namespace headrace::app
