// A hub of a test's own on loopback: what huggingface.co answers about models, with faults.
#pragma once
#include <boost/asio.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace headrace::testing_support {

class SmallHub {
 public:
  struct File {
    std::string content;
    bool lfs = false;  // named by its SHA-256, as weights are, else by git's hash
  };
  using Files = std::map<std::string, File>;

  // The fate of requests whose path holds `path`, in place of the answer, `times` times.
  struct Fault {
    std::string path;
    int times = 1;
    int status = 0;  // of an answer without content; 0: the answer itself, with the changes below
    std::map<std::string, std::string> headers = {};
    std::optional<std::string> content = {};        // in place of the file's
    std::optional<size_t> cut_after = {};           // bytes of the body, behind which the connection is closed
    std::optional<size_t> stall_after = {};         // bytes of the body, behind which nothing comes for a second
    bool ignores_range = false, no_length = false;  // no_length: the body ends with the connection
  };

  struct Seen {
    std::string method, path, range, authorization;
  };

  SmallHub();
  ~SmallHub();
  SmallHub(const SmallHub&) = delete;
  SmallHub& operator=(const SmallHub&) = delete;

  std::string endpoint() const;  // "http://127.0.0.1:PORT"
  // Sets a repository's content at branch main; returns the commit.
  std::string set_repository(const std::string& name, const Files& files);
  void set_gated(const std::string& name, const std::string& token);  // files go to those who have it
  void redirect_weights_to(std::string endpoint);  // another hub, which has the same repository; empty: nowhere
  void set_bytes_per_s(size_t rate) { bytes_per_s_ = rate; }
  void list_names_alone() { names_alone_ = true; }  // without sizes and hashes
  void add_fault(Fault fault);
  int most_at_once() const { return most_at_once_; }  // requests that were answered at a time
  // Requests so far.
  std::vector<Seen> seen() const;
  int64_t count(const std::string& path) const;  // whose path holds `path`

 private:
  using Socket = boost::asio::ip::tcp::socket;
  struct Repository {
    std::string commit, token;
    Files files;
  };
  struct Answer {
    int status = 200;
    std::map<std::string, std::string> headers = {};
    std::string body = {};
  };

  void accept();
  void serve(Socket& socket);
  bool answer(Socket& socket, const Seen& request);
  Answer answer_to(const Seen& request);
  Answer listing(const std::string& name, const std::string& revision, bool tree);
  Answer file(const Seen& request, const std::string& name, const std::string& path);
  std::optional<Fault> fault_of(const Seen& request);
  bool send(Socket& socket, const Seen& request, Answer answer, const Fault& fault);

  mutable std::mutex mutex_;  // of what follows, up to the threads
  std::map<std::string, Repository> repositories_;
  std::vector<Fault> faults_;
  std::vector<Seen> seen_;
  std::string weights_elsewhere_;
  std::atomic<size_t> bytes_per_s_ = 0;  // 0: no limit
  std::atomic<bool> ends_ = false, names_alone_ = false;
  std::atomic<int> at_once_ = 0, most_at_once_ = 0;
  boost::asio::io_context context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::vector<std::jthread> connections_;
  std::jthread accepting_;  // adds connections, and ends first
};

}  // namespace headrace::testing_support
