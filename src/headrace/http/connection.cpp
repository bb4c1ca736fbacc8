#include "headrace/http/connection.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "headrace/http/connection_set.h"

namespace headrace {
namespace {

namespace asio = boost::asio;
using IoError = boost::system::error_code;
using std::chrono::seconds;

constexpr auto kNever = Connection::Clock::time_point::max();
constexpr seconds kLingerTime{2};  // for the client to read an answer before the socket closes
constexpr seconds kProbeTime{1};
constexpr size_t kMaxProbes = 8;          // of one chunk: clients take 16 digits
constexpr size_t kBytesPerSecond = 1024;  // that a client reads and writes at least

// Adds a second for each KB, up to `time` from now.
void extend(Connection::Clock::time_point& deadline, size_t& bytes, std::chrono::milliseconds time) {
  deadline = std::min(deadline + seconds(bytes / kBytesPerSecond), Connection::Clock::now() + time);
  bytes %= kBytesPerSecond;
}

}  // namespace

Connection::Connection(ConnectionSet& set, Socket socket, std::string peer)
    : set_(set),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      phase_deadline_(Clock::now() + set.config().idle_time) {}

void Connection::start() { wait_for_input(); }

// `event` is called when the socket is ready. What it throws, such as a lack of memory, ends this connection alone.
void Connection::wait(Socket::wait_type type, bool Connection::*is_waiting, void (Connection::*event)()) {
  if (this->*is_waiting || phase_ == Phase::kClosed) return;
  socket_.async_wait(type, [self = shared_from_this(), is_waiting, event](const IoError& error) {
    self.get()->*is_waiting = false;
    if (error || self->phase_ == Phase::kClosed) return;
    try {
      (self.get()->*event)();
    } catch (...) {
      self->close();
    }
  });
  this->*is_waiting = true;
}

// A client that sends requests while it is served is heard until they fill a buffer; then only its end is.
void Connection::wait_for_input() {
  if (input_ended_ || (phase_ == Phase::kServing && input_.size() >= set_.config().max_header_bytes)) {
    if (phase_ == Phase::kServing) wait(Socket::wait_error, &Connection::awaits_error_, &Connection::on_error);
    return;
  }
  wait(Socket::wait_read, &Connection::awaits_input_, &Connection::on_readable);
}

void Connection::on_readable() {
  IoError error;
  const size_t size = socket_.receive(asio::buffer(set_.scratch()), 0, error);
  if (error == asio::error::eof) return on_input_end();
  if (error && error != asio::error::would_block) return close();
  if (phase_ == Phase::kIdle || phase_ == Phase::kReading || phase_ == Phase::kServing) {
    input_.append(set_.scratch().data(), size);
    read_request();
  }
  wait_for_input();
}

// Urgent data wake this, too: they are no error, and nobody waits for them again.
void Connection::on_error() {
  pollfd state{.fd = socket_.native_handle(), .events = 0, .revents = 0};
  if (poll(&state, 1, 0) > 0 && (state.revents & (POLLERR | POLLHUP)) != 0) close();
}

void Connection::on_input_end() {
  input_ended_ = true;
  switch (phase_) {
    case Phase::kReading: return refuse({400, "the request ended before it was complete"});
    case Phase::kServing: probe(); return wait_for_input();
    case Phase::kRefusing: return;
    case Phase::kIdle:
    case Phase::kLingering:
    case Phase::kClosed: return close();
  }
}

void Connection::read_request() {
  if (phase_ == Phase::kIdle && !input_.empty()) {
    const HttpServerConfig& c = set_.config();
    parser_ = std::make_unique<RequestParser>(HttpLimits{
        .max_header_bytes = c.max_header_bytes, .max_headers = c.max_headers, .max_body_bytes = c.max_body_bytes});
    phase_ = Phase::kReading;
    phase_deadline_ = Clock::now() + c.header_time;
    body_counted_.reset();
  }
  if (phase_ != Phase::kReading) return;
  switch (parser_->parse(input_)) {
    case RequestParser::State::kHead: return;
    case RequestParser::State::kBody: return on_body_part();
    case RequestParser::State::kComplete: return dispatch();
    case RequestParser::State::kRefused: return refuse(parser_->refusal());
  }
}

void Connection::on_body_part() {
  const size_t size = parser_->request().body.size();
  if (!body_counted_) {
    body_counted_ = 0;
    phase_deadline_ = Clock::now() + set_.config().body_time;
    if (parser_->expects_continue() && size == 0 && input_.empty()) {
      backlog_ += str(kHttpVersion, "100 Continue\r\n\r\n");
      write();
    }
  }
  count_body(size);
  if (set_.incoming_bytes() > set_.config().max_incoming_bytes) {
    return refuse({503, "the server is receiving as many bytes of requests as it takes"});
  }
  size_t come = size - *body_counted_;
  extend(phase_deadline_, come, set_.config().body_time);
  body_counted_ = size - come;
}

void Connection::count_body(size_t bytes) {
  set_.incoming_bytes() += bytes - body_bytes_;
  body_bytes_ = bytes;
}

void Connection::dispatch() {
  count_body(0);
  HttpRequest request = std::move(parser_->request());
  request.peer = peer_;
  request.id = set_.id_of(request);
  response_ = {.id = request.id,
               .is_http11 = parser_->is_http11(),
               .answers_head = request.method == "HEAD",
               .keeps_alive = parser_->keeps_alive()};
  const BodyFraming framing = response_.answers_head ? BodyFraming::kNone
                              : response_.is_http11  ? BodyFraming::kChunked
                                                     : BodyFraming::kUntilClose;
  const auto channel = std::make_shared<ResponseChannel>(set_.wakes(), *this, framing);
  const auto exchange = std::make_shared<Exchange>(std::move(request), channel);
  parser_.reset();
  if (input_.empty()) input_.shrink_to_fit();
  response_.channel = channel;
  phase_ = Phase::kServing;
  phase_deadline_ = kNever;
  set_.begin_response();
  try {
    set_.handle(exchange);
  } catch (...) {
    channel->fail();
  }
}

void Connection::deliver() {
  if (phase_ != Phase::kServing) return;
  ResponseChannel::Output output = response_.channel->take();
  if (output.head) add_head(*output.head, output.content_length);
  if (!output.bytes.empty()) response_.num_probes = 0;
  if (written_ > unwritten()) backlog_.erase(0, std::exchange(written_, 0));
  backlog_.empty() ? void(backlog_ = std::move(output.bytes)) : void(backlog_ += output.bytes);
  response_.has_ended = output.has_ended;
  if (output.has_failed) return fail_response();
  if (response_.is_stream && unwritten() > set_.config().max_unsent_bytes && full_deadline_ == kNever) {
    full_deadline_ = Clock::now() + set_.config().stall_time;
  }
  if (stall_deadline_ == kNever) write();
}

namespace {

bool asks_to_close(const ResponseHead& head) {
  return std::ranges::any_of(
      head.headers, [](const auto& header) { return header.first == "connection" && header.second == "close"; });
}

}  // namespace

void Connection::add_head(const ResponseHead& head, std::optional<size_t> content_length) {
  response_.has_head = true;
  response_.is_stream = !content_length.has_value();
  if (set_.is_ending() || (response_.is_stream && !response_.is_http11)) response_.keeps_alive = false;
  if (asks_to_close(head)) response_.keeps_alive = false;
  const std::string text = format_head(head, {.request_id = response_.id,
                                              .date = set_.date(),
                                              .content_length = content_length,
                                              .is_http11 = response_.is_http11,
                                              .keeps_alive = response_.keeps_alive});
  backlog_.append(text, std::exchange(response_.num_probes, 0));
}

void Connection::fail_response() {
  if (response_.has_head) return cut_off();  // the client sees that the body is not complete
  refuse({500, "the server failed within this request"});
}

void Connection::refuse(const HttpRefusal& why) {
  set_.count_refusal();
  if (phase_ == Phase::kReading) {
    response_ = {.id = set_.id_of(parser_->request()), .answers_head = parser_->request().method == "HEAD"};
  } else if (phase_ == Phase::kIdle) {
    response_ = {.id = set_.id_of({})};
  }
  const std::string body = set_.error_body(why);
  response_.keeps_alive = false;
  count_body(0);
  add_head({.status = why.status, .content_type = "application/json"}, body.size());
  if (!response_.answers_head) backlog_ += body;
  parser_.reset();
  if (const auto channel = std::exchange(response_.channel, nullptr)) {
    channel->finish();
    set_.end_response();
  }
  phase_ = Phase::kRefusing;
  phase_deadline_ = kNever;
  if (stall_deadline_ == kNever) write();
}

void Connection::finish_response() {
  std::exchange(response_.channel, nullptr)->finish();
  set_.end_response();
  const bool keeps_alive = response_.keeps_alive && !set_.is_ending();
  response_ = {};
  if (!keeps_alive) return linger();
  phase_ = Phase::kIdle;
  phase_deadline_ = Clock::now() + set_.config().idle_time;
  read_request();  // one that came meanwhile
  if (input_ended_ && phase_ != Phase::kServing) return on_input_end();
  wait_for_input();
}

void Connection::write() {
  while (unwritten() > 0) {
    IoError error;
    const size_t size = socket_.send(asio::buffer(backlog_.data() + written_, unwritten()), 0, error);
    if (error == asio::error::would_block) return on_blocked();
    if (error) return close();
    written_ += size;
    on_progress(size);
  }
  on_written();
}

void Connection::on_blocked() {
  if (stall_deadline_ == kNever) stall_deadline_ = Clock::now() + set_.config().stall_time;
  if (response_.channel) response_.channel->set_backlog(unwritten());
  wait(Socket::wait_write, &Connection::awaits_output_, &Connection::write);
}

void Connection::on_progress(size_t bytes) {
  if (stall_deadline_ == kNever) return;
  progress_ += bytes;
  extend(stall_deadline_, progress_, set_.config().stall_time);
  if (unwritten() <= set_.config().max_unsent_bytes) full_deadline_ = kNever;
}

void Connection::on_written() {
  backlog_ = {};  // an idle stream has no buffer
  written_ = progress_ = 0;
  stall_deadline_ = full_deadline_ = kNever;
  if (response_.channel) response_.channel->set_backlog(0);
  if (phase_ == Phase::kRefusing) return linger();
  if (phase_ != Phase::kServing) return;
  if (response_.has_ended) return finish_response();
  if (input_ended_) phase_deadline_ = Clock::now() + kProbeTime;
}

// Sends a byte of the response to a client that has ended its side.
void Connection::probe() {
  if (unwritten() > 0 || response_.has_ended) return;  // those bytes tell
  std::string_view byte;
  if (!response_.has_head) {
    byte = kHttpVersion.substr(response_.num_probes, 1);
  } else if (response_.is_http11 && !response_.answers_head && response_.num_probes < kMaxProbes) {
    byte = "0";
  }
  phase_deadline_ = kNever;
  if (byte.empty()) return;
  IoError error;
  response_.num_probes += socket_.send(asio::buffer(byte), 0, error);
  if (error && error != asio::error::would_block) return close();
  phase_deadline_ = Clock::now() + kProbeTime * (1 << response_.num_probes);  // it may read this one and then close
}

void Connection::check_deadlines(Clock::time_point now) {
  if (now >= std::min(stall_deadline_, full_deadline_)) return cut_off();
  if (now < phase_deadline_) return;
  const HttpServerConfig& c = set_.config();
  switch (phase_) {
    case Phase::kReading:
      return body_counted_
                 ? refuse({408, str("the request's body came slower than ", kBytesPerSecond, " bytes a second for ",
                                    c.body_time.count(), " ms")})
                 : refuse({408, str("the request's head did not come within ", c.header_time.count(), " ms")});
    case Phase::kServing: return probe();
    case Phase::kIdle:
    case Phase::kRefusing:
    case Phase::kLingering:
    case Phase::kClosed: return close();
  }
}

// Closing a socket with unread input resets it, and the client may lose the answer. So its side ends first.
void Connection::linger() {
  phase_ = Phase::kLingering;
  IoError error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (input_ended_ || error) return close();
  input_ = {};
  phase_deadline_ = Clock::now() + kLingerTime;
  wait_for_input();
}

void Connection::end_if_idle() {
  if (phase_ == Phase::kIdle) linger();
}

// The rest of the response is dropped, also what the kernel holds of it.
void Connection::cut_off() {
  IoError error;
  socket_.set_option(Socket::linger(true, 0), error);
  close();
}

void Connection::close() {
  if (std::exchange(phase_, Phase::kClosed) == Phase::kClosed) return;
  const auto self = shared_from_this();
  IoError error;
  socket_.close(error);
  count_body(0);
  if (const auto channel = std::exchange(response_.channel, nullptr)) {
    set_.end_response();
    try {
      channel->close();
    } catch (...) {  // the handler's, and nobody to tell
    }
  }
  set_.remove(*this);
}

}  // namespace headrace
