// The event loop without memory: the Nth allocation fails, for each N. It ends one connection at most.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "http/test_server.h"

namespace {

std::atomic<int64_t> allocations_left{-1};  // of the event loop's thread; the next one fails
thread_local bool is_event_loop = false;

void* allocate(size_t bytes) {
  if (is_event_loop && allocations_left.load() >= 0 && allocations_left.fetch_sub(1) == 0) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace headrace {
namespace {

using namespace std::chrono_literals;
using testing_support::raw_request;
using testing_support::RawHttpClient;

// Answers at once on the event loop, by a whole response or a stream.
void answer(const std::shared_ptr<HttpExchange>& exchange) {
  is_event_loop = true;
  const HttpRequest& request = exchange->request();
  if (request.path != "/stream")
    return exchange->respond(200, "text/plain", "a whole response, longer than a short string");
  exchange->begin_stream(200, "text/plain", {{"A-Header", "a value that is no short string"}});
  for (int i = 0; i < 3; ++i) exchange->send("a piece of the stream that is no short string either");
  exchange->end_stream();
}

bool is_answered(uint16_t port, std::string_view bytes) {
  RawHttpClient client(port);
  client.send(bytes);
  return client.response(5s).is_complete;
}

TEST(HttpMemory, ALackOfItEndsOneConnection) {
  HttpServer server({.port = 0}, answer, [](int, std::string_view) { return std::string("{}"); });
  const std::string whole =
      raw_request("POST", "/whole", std::string(3000, 'a'), "X-Request-Id: an id that is no short string\r\n");
  const std::string stream = raw_request("GET", "/stream");
  for (const std::string& bytes : {whole, stream, std::string("BREW / HTTP/1.1\r\n\r\n")}) {
    ASSERT_TRUE(is_answered(server.port(), bytes));
    int64_t failures = 0;
    for (int64_t n = 0;; ++n, ++failures) {
      allocations_left = n;
      is_answered(server.port(), bytes);  // or not
      const bool was_reached = allocations_left.exchange(-1) < 0;
      ASSERT_TRUE(is_answered(server.port(), bytes)) << "behind a lack at allocation " << n;
      ASSERT_TRUE(server.wait_until_idle(5s)) << n;
      if (!was_reached) break;
    }
    EXPECT_GT(failures, 5);
  }
  for (int i = 0; server.stats().connections > 0 && i < 5000; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(server.stats().connections, 0);
}

}  // namespace
}  // namespace headrace
