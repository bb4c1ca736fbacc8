// A server's connections are files of its process.
#pragma once
#include <cstdint>

namespace headrace {

// Raises the soft limit of open files to the hard one, and returns it. Programs that use select() would not bear it, so
// the program decides, not HttpServer.
int64_t raise_open_file_limit();

}  // namespace headrace
