#include "released_gil.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

namespace headrace::python {
namespace {

namespace nb = nanobind;

struct Calls {
  std::mutex mutex;
  std::condition_variable changed;
  int num_running = 0;
  std::optional<std::thread::id> ends;  // the thread that ends the interpreter
};

Calls& calls() {
  static Calls& calls = *new Calls;  // never freed: threads may outlive the process's static objects
  return calls;
}

void wait_for_calls() {
  const nb::gil_scoped_release release;
  std::unique_lock lock(calls().mutex);
  calls().ends = std::this_thread::get_id();
  calls().changed.wait(lock, [] { return calls().num_running == 0; });
}

}  // namespace

ReleasedGil::ReleasedGil() {
  const std::lock_guard lock(calls().mutex);
  if (calls().ends && *calls().ends != std::this_thread::get_id()) return;
  ++calls().num_running;
  released_.emplace();
}

ReleasedGil::~ReleasedGil() {
  if (!released_) return;
  released_.reset();  // before the count: the interpreter is there
  const std::lock_guard lock(calls().mutex);
  if (--calls().num_running == 0) calls().changed.notify_all();
}

bool interpreter_waits() {
  const std::lock_guard lock(calls().mutex);
  return calls().ends && *calls().ends != std::this_thread::get_id();
}

void add_interpreter_end(nb::module_& module) {
  module.def("_wait_for_calls", wait_for_calls, "Waits for calls of other threads; the interpreter's last call here.");
  nb::module_::import_("atexit").attr("register")(module.attr("_wait_for_calls"));
  pthread_atfork(nullptr, nullptr, [] { new (&calls()) Calls; });  // other threads, and their calls, are not in a child
}

}  // namespace headrace::python
