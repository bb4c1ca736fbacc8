// `headrace serve` as a process of its own, for the exam.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "support/safetensors_writer.h"

namespace headrace::exam {

using Milliseconds = std::chrono::milliseconds;

// Every limit of the exam is for a machine that has nothing else to do. A busy one multiplies them (--patience).
inline int patience = 1;
inline Milliseconds patient(Milliseconds limit) { return limit * patience; }

struct ServerCommand {
  std::filesystem::path program, model;
  std::vector<std::string> flags = {};
  std::string key = {};                       // an API key that it asks for; empty: none
  std::vector<std::string> environment = {};  // "NAME=value", beside the exam's own
  int64_t address_space = 0;                  // RLIMIT_AS in bytes; 0: none
};

// Killed with the object. Not thread-safe.
class ExamServer {
 public:
  enum class Wait : uint8_t { kUntilItServes, kNot };

  // Throws ExamFailure if the server ends, or says nothing for a minute, before it serves.
  explicit ExamServer(ServerCommand command, Wait wait = Wait::kUntilItServes);
  ExamServer(const ExamServer&) = delete;
  ExamServer& operator=(const ExamServer&) = delete;
  ~ExamServer();

  bool serves();                           // waits until it does, or ends
  uint16_t port() const { return port_; }  // once it serves
  std::string authorization() const;       // a header's line that shows the key; empty without one
  pid_t pid() const { return pid_; }
  bool is_alive();
  void signal(int number) const;
  // The exit status, or 128 and the signal's number; nothing if it runs on.
  std::optional<int> wait(Milliseconds time);

  std::string output() const;  // what the start report says
  std::string log() const;     // standard error so far
  int64_t resident_bytes() const;
  int64_t num_files() const;  // open ones
  double cpu_seconds() const;

 private:
  void start();

  ServerCommand command_;
  test::TempDir directory_;
  pid_t pid_ = -1;
  std::optional<int> status_;
  uint16_t port_ = 0;
};

// A port that nobody listens on.
uint16_t free_port();

// Runs a program and waits for its end, a minute at most. `output` has both of its streams.
struct ProgramResult {
  int status = 0;
  std::string output;
};
ProgramResult run_program(const std::vector<std::string>& words, const std::vector<std::string>& environment = {});

}  // namespace headrace::exam
