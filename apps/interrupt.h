// Ctrl-C, or a polite end by whoever started the program (SIGTERM).
#pragma once

namespace headrace::app {

// From here on either ends the program at once, with status kInterrupted: there is nothing to print yet. One that the
// program's parent ignores stays ignored.
void catch_interrupts();

// From here on there is something to print, and after the first of them the program goes on to where it asks
// interrupted(). More than `times` end it at once.
void finish_when_interrupted(int times = 1);
bool interrupted();  // since then
// Forgets an interrupt, so that the next one is a first one again. Returns true if there was one.
bool take_interrupt();
bool asked_to_end();  // SIGTERM came

// Written to standard error before the program ends at once: null or a literal, such as what wipes a line of progress.
void say_when_interrupted(const char* bytes);

}  // namespace headrace::app
