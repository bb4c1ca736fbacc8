// A loaded model and its engine, as Python holds them.
#pragma once
#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "headrace/chat/chat_template.h"
#include "headrace/llm/async_llm.h"
#include "headrace/llm/event_queue.h"

namespace headrace::python {

// Shared by headrace.LLM and its streams. It is usable from its construction to close(), in the process that made it.
// All members may be called from any thread.
class Engine {
 public:
  // Loads the model; without the GIL. Errors as AsyncLLM.
  Engine(const ModelDescription& model, LLMOptions options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() { close(); }

  // While one lives, close() waits. A call holds one until it has the GIL again, so that no thread waits for the GIL of
  // an interpreter that has ended.
  class Use {
   public:
    // Error kCancelled after close(); kUnsupported in a forked child.
    explicit Use(Engine& engine);
    Use(const Use& other);  // also while the engine is closing
    Use& operator=(const Use&) = delete;
    ~Use();
    AsyncLLM* operator->() const { return engine_.llm_.get(); }
    AsyncLLM& operator*() const { return *engine_.llm_; }

   private:
    Engine& engine_;  // not owned
  };

  // Returns true once close() was called: calls that wait return soon.
  bool is_closing() const;
  bool is_closed() const;  // it is done
  // Keeps a queue, to which the engine may still send, until the engine is closed.
  void keep(std::unique_ptr<EventQueue> events);
  // Returns true in a process that was forked from the one that made this engine: it has no thread here.
  bool is_forked() const;
  // Aborts all requests, ends the engine's thread and frees its memory. Waits for calls of other threads: without the
  // GIL. The second call waits until the first is done. Does nothing in a forked child.
  void close();

  const std::filesystem::path& directory() const { return directory_; }
  // The model's chat template. Error kInvalidArgument if it has none.
  const ChatTemplate& chat_template();

 private:
  std::filesystem::path directory_;
  pid_t process_;
  std::unique_ptr<AsyncLLM> llm_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  int num_uses_ = 0;
  bool closing_ = false, closed_ = false;
  std::vector<std::unique_ptr<EventQueue>> kept_;
  std::optional<ChatTemplate> template_;
};

// Closes the engines that load() made; without the GIL. In a forked child it leaves those of the parent as they are.
void close_engines();

}  // namespace headrace::python
