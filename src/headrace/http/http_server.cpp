#include "headrace/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <csignal>
#include <deque>
#include <future>
#include <thread>

#include "headrace/http/connection_set.h"
#include "headrace/http/listener.h"

namespace headrace {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;

// Deadlines are checked this often: an eighth of the shortest one late at most.
milliseconds check_interval(const HttpServerConfig& c) {
  const milliseconds shortest = std::min({c.header_time, c.body_time, c.idle_time, c.stall_time}) / 8;
  return std::clamp(shortest, milliseconds(2), milliseconds(250));
}

}  // namespace

struct HttpServer::Parts {
  Parts(const HttpServerConfig& config, HttpHandler handler, HttpErrorBody error_body)
      : wakes(std::make_shared<WakeList>([this] { asio::post(io, [this] { set.deliver_all(); }); })),
        set(config, std::move(handler), std::move(error_body), wakes),
        interval(check_interval(config)) {}

  void listen(std::vector<ListeningSocket> sockets);
  void run();
  void run_once();
  template <class Work>
  void on_loop(Work work);

  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard =
      asio::make_work_guard(io);  // no connection is no end
  std::shared_ptr<WakeList> wakes;
  ConnectionSet set;
  std::deque<Listener> listeners;
  const milliseconds interval;
  uint16_t port = 0;
  std::atomic<bool> ends = false;
  std::thread thread;
};

void HttpServer::Parts::listen(std::vector<ListeningSocket> sockets) {
  port = sockets.front().port;
  for (ListeningSocket& socket : sockets) listeners.emplace_back(io, std::move(socket), set).listen();
}

// Without connections the loop sleeps until one comes.
void HttpServer::Parts::run_once() {
  const bool is_quiet = set.is_empty() && std::ranges::none_of(listeners, &Listener::is_paused);
  if (is_quiet) {
    io.run_one();
    return;
  }
  io.run_for(interval);
  set.check_deadlines();
  set.deliver_all();  // a wake-up that lacked memory
  for (Listener& listener : listeners) {
    if (listener.is_paused()) listener.listen();
  }
}

void HttpServer::Parts::run() {
  while (!ends) {
    try {
      run_once();
    } catch (...) {  // memory is short: each connection keeps its state
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  listeners.clear();
  set.close_all();
  wakes->close();
}

// Runs `work` on the event loop and waits for it.
template <class Work>
void HttpServer::Parts::on_loop(Work work) {
  if (std::this_thread::get_id() == thread.get_id()) return work();
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  asio::post(io, std::move(task));
  done.get();
}

HttpServer::HttpServer(const HttpServerConfig& config, HttpHandler handler, HttpErrorBody error_body)
    : parts_(std::make_unique<Parts>(config, std::move(handler), std::move(error_body))) {
  parts_->listen(open_listening_sockets(config));
  sigset_t all, before;  // signals are for the program's threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  parts_->thread = std::thread([parts = parts_.get()] { parts->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

HttpServer::~HttpServer() {
  parts_->ends = true;
  parts_->io.stop();
  parts_->thread.join();
}

uint16_t HttpServer::port() const { return parts_->port; }

void HttpServer::stop_accepting() {
  parts_->on_loop([this] {
    for (Listener& listener : parts_->listeners) listener.close();
    parts_->set.end_idle();
  });
}

bool HttpServer::wait_until_idle(std::chrono::milliseconds time) { return parts_->set.wait_until_idle(time); }
HttpServer::Stats HttpServer::stats() const { return parts_->set.stats(); }

}  // namespace headrace
