// Ctrl-C, or a polite end by whoever started the program (SIGTERM): what runs ends soon, what was made is printed, and
// the status says so. A second one kills.
#pragma once

namespace headrace::app {

void catch_interrupts();
bool interrupted();  // since then

}  // namespace headrace::app
