#include "exam/exam_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "exam/exam.h"

namespace headrace::exam {
namespace {

namespace fs = std::filesystem;

constexpr Milliseconds kLook{2}, kStart{60'000};

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("HEADRACE_"))
      all.emplace_back(*entry);  // settings of this machine's user
  }
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct Spawned {
  const std::vector<std::string>& words;
  const std::vector<std::string>& environment;
  fs::path output, errors;
  int64_t address_space = 0;
};

pid_t spawn(const Spawned& s) {
  const std::vector<std::string> environment = environment_with(s.environment);
  const std::vector<char*> arguments = pointers(s.words), variables = pointers(environment);
  const std::string output = s.output, errors = s.errors;
  const pid_t pid = fork();
  require(pid >= 0, "fork failed");
  if (pid > 0) return pid;
  const int out = open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const int err = open(errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  const rlimit limit{static_cast<rlim_t>(s.address_space), static_cast<rlim_t>(s.address_space)};
  if (s.address_space > 0) setrlimit(RLIMIT_AS, &limit);
  execve(arguments[0], arguments.data(), variables.data());
  _exit(127);
}

std::optional<int> wait_for(pid_t pid, Milliseconds time) {
  const auto end = Clock::now() + time;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (Clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(kLook);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

ExamServer::ExamServer(ServerCommand command, Wait wait) : command_(std::move(command)) {
  start();
  if (wait == Wait::kNot || serves()) return;
  throw ExamFailure(str("the server ended with status ", *status_, " before it served: ", log()));
}

ExamServer::~ExamServer() {
  if (!is_alive()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ExamServer::start() {
  std::vector<std::string> words = {command_.program, "serve", command_.model};
  words.insert(words.end(), command_.flags.begin(), command_.flags.end());
  if (!command_.key.empty()) words.insert(words.end(), {"--api-key", command_.key});
  pid_ = spawn({.words = words,
                .environment = command_.environment,
                .output = directory_ / "output",
                .errors = directory_ / "log",
                .address_space = command_.address_space});
}

bool ExamServer::serves() {
  constexpr std::string_view kUrl = "http://127.0.0.1:";
  const auto end = Clock::now() + kStart;
  while (is_alive() && Clock::now() < end) {
    const std::string text = output();
    const size_t at = text.find(kUrl);
    if (at != std::string::npos && text.ends_with('\n')) {
      port_ = static_cast<uint16_t>(std::stoi(text.substr(at + kUrl.size())));
      return true;
    }
    std::this_thread::sleep_for(kLook);
  }
  require(!is_alive(), str("the server did not say its address within a minute: ", log()));
  return false;
}

std::string ExamServer::authorization() const {
  return command_.key.empty() ? "" : str("Authorization: Bearer ", command_.key, "\r\n");
}

bool ExamServer::is_alive() {
  if (!status_) status_ = wait_for(pid_, Milliseconds(0));
  return !status_;
}

void ExamServer::signal(int number) const {
  if (!status_) kill(pid_, number);
}

std::optional<int> ExamServer::wait(Milliseconds time) {
  if (!status_) status_ = wait_for(pid_, patient(time));
  return status_;
}

std::string ExamServer::output() const { return text_of(directory_ / "output"); }
std::string ExamServer::log() const { return text_of(directory_ / "log"); }

int64_t ExamServer::resident_bytes() const {
  std::ifstream file(str("/proc/", pid_, "/statm"));
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t ExamServer::num_files() const {
  std::error_code error;
  const fs::directory_iterator files(str("/proc/", pid_, "/fd"), error);
  return std::distance(begin(files), end(files));
}

double ExamServer::cpu_seconds() const {
  std::string text = text_of(str("/proc/", pid_, "/stat"));
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  require(bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0, "no port is free");
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

ProgramResult run_program(const std::vector<std::string>& words, const std::vector<std::string>& environment) {
  const test::TempDir directory;
  const fs::path output = directory / "output";
  const pid_t pid = spawn({.words = words, .environment = environment, .output = output, .errors = output});
  const std::optional<int> status = wait_for(pid, kStart);
  if (!status) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  require(status.has_value(), str(words.front(), " did not end within a minute"));
  return {*status, text_of(output)};
}

}  // namespace headrace::exam
