#include "released_gil.h"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

#include "engine.h"

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

bool interpreter_waits(const std::unique_lock<std::mutex>&) {
  return calls().ends && *calls().ends != std::this_thread::get_id();
}

void end_calls() {
  const nb::gil_scoped_release release;
  std::unique_lock lock(calls().mutex);
  calls().ends = std::this_thread::get_id();
  lock.unlock();
  close_engines();
  lock.lock();
  calls().changed.wait(lock, [] { return calls().num_running == 0; });
}

}  // namespace

ReleasedGil::ReleasedGil() {
  std::unique_lock lock(calls().mutex);
  const bool is_too_late = interpreter_waits(lock);
  if (!is_too_late) ++calls().num_running;
  lock.unlock();
  released_.emplace();
  if (!is_too_late) return;
  for (;;) pause();
}

ReleasedGil::~ReleasedGil() {
  released_.reset();  // before the count: the interpreter is there
  const std::lock_guard lock(calls().mutex);
  if (--calls().num_running == 0) calls().changed.notify_all();
}

bool interpreter_waits() { return interpreter_waits(std::unique_lock(calls().mutex)); }

void add_interpreter_end(nb::module_& module) {
  module.def("_end_calls", end_calls, "Closes all engines and waits for calls of other threads: the interpreter ends.");
  nb::module_::import_("atexit").attr("register")(module.attr("_end_calls"));
  pthread_atfork(nullptr, nullptr, [] { new (&calls()) Calls; });  // other threads, and their calls, are not in a child
}

}  // namespace headrace::python
