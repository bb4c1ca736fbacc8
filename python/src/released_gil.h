// Calls without the GIL that an interpreter waits for before it ends.
#pragma once
#include <nanobind/nanobind.h>

#include <optional>

namespace headrace::python {

// Releases the GIL while it lives. A thread that would take the GIL of an interpreter that has ended is ended by
// Python, in the middle of C++: so an interpreter that ends waits for those that live. A thread that would make a later
// one stops there for good, unless it is the one that ends the interpreter. For calls that end by themselves; others
// hold an Engine::Use, for which close() waits.
class ReleasedGil {
 public:
  ReleasedGil();  // with the GIL
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  ~ReleasedGil();

 private:
  std::optional<nanobind::gil_scoped_release> released_;
};

// Returns true once the interpreter waits for calls of other threads, of which this is one: it should end soon.
bool interpreter_waits();

// Makes the interpreter's end close all engines and wait for calls.
void add_interpreter_end(nanobind::module_& module);

}  // namespace headrace::python
