// Clients that go, and clients that only end their sending side.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "http/test_server.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;
using testing_support::raw_request;
using testing_support::RawHttpClient;
using testing_support::RawHttpResponse;
using testing_support::TestServer;
using Clock = std::chrono::steady_clock;

// A request that is held, and whether its client has gone.
struct HeldRequest {
  explicit HeldRequest(TestServer& server, std::string_view bytes = raw_request("GET", "/hold"))
      : client(server.port()), exchange((client.send(bytes), server.held())) {
    exchange->on_gone([count = num_gone] { ++*count; });
  }
  bool is_gone(std::chrono::milliseconds time) const {
    for (const auto until = Clock::now() + time; Clock::now() < until; std::this_thread::sleep_for(1ms)) {
      if (*num_gone > 0) return exchange->is_closed();
    }
    return false;
  }

  RawHttpClient client;
  std::shared_ptr<HttpExchange> exchange;
  std::shared_ptr<std::atomic<int>> num_gone = std::make_shared<std::atomic<int>>(0);
};

TEST(HttpDisconnect, IsSeenBeforeTheResponse) {
  TestServer server;
  for (const bool resets : {false, true}) {
    HeldRequest held(server);
    EXPECT_FALSE(held.exchange->is_closed());
    resets ? held.client.reset() : held.client.close();
    EXPECT_TRUE(held.is_gone(1s)) << resets;
    held.exchange->respond(200, "text/plain", "goes nowhere");
    EXPECT_EQ(*held.num_gone, 1);
  }
  EXPECT_TRUE(server->wait_until_idle(1s));
}

TEST(HttpDisconnect, IsSeenWithinAQuietStream) {
  TestServer server;
  for (const bool has_read : {false, true}) {
    HeldRequest held(server);
    held.exchange->begin_stream(200, "text/event-stream");
    held.exchange->send("data: 1\n\n");
    if (has_read) held.client.receive_until("data: 1\n\n\r\n");
    held.client.close();
    EXPECT_TRUE(held.is_gone(1s)) << has_read;
    held.exchange->send("data: 2\n\n");
    held.exchange->end_stream();
    EXPECT_EQ(held.exchange->unsent_bytes(), 0U);
  }
}

TEST(HttpDisconnect, IsSeenBehindRequestsThatWait) {
  TestServer server;
  HeldRequest held(server, raw_request("GET", "/hold") + raw_request("GET", "/next"));
  held.client.close();
  EXPECT_TRUE(held.is_gone(1s));
}

TEST(HttpDisconnect, IsSeenBehindAHalfClose) {
  TestServer server;
  HeldRequest held(server);
  held.client.end_sending();
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(*held.num_gone, 0);
  held.client.close();  // with the probe's byte unread: a reset
  EXPECT_TRUE(held.is_gone(1s));
}

TEST(HttpDisconnect, HalfCloseIsNone) {
  TestServer server;
  HeldRequest held(server);
  held.client.end_sending();
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(*held.num_gone, 0);
  held.exchange->respond(200, "text/plain", "the answer");
  const RawHttpResponse response = held.client.response();
  EXPECT_EQ(response.status, 200) << "the byte that was sent before is part of the answer";
  EXPECT_EQ(response.body, "the answer");
  EXPECT_TRUE(held.client.is_closed());
  EXPECT_EQ(*held.num_gone, 0);
}

TEST(HttpDisconnect, HalfCloseWithinAStreamIsNone) {
  TestServer server;
  for (const std::string_view version : {"1.1", "1.0"}) {
    HeldRequest held(server, str("GET /hold HTTP/", version, "\r\nHost: a\r\n\r\n"));
    held.exchange->begin_stream(200, "text/plain");
    held.exchange->send("one ");
    held.client.receive_until("one ");
    held.client.end_sending();
    std::this_thread::sleep_for(50ms);
    held.exchange->send("two");
    std::this_thread::sleep_for(50ms);
    held.exchange->end_stream();
    EXPECT_EQ(*held.num_gone, 0);
    const std::string rest = held.client.receive_all();
    EXPECT_EQ(rest, version == "1.1" ? "\r\n03\r\ntwo\r\n0\r\n\r\n" : "two");
  }
}

TEST(HttpDisconnect, HalfCloseBehindSeveralRequestsAnswersThem) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send(raw_request("GET", "/1") + raw_request("GET", "/2") + raw_request("GET", "/3"));
  client.end_sending();
  for (const std::string_view path : {"/1", "/2", "/3"}) EXPECT_EQ(client.response().body, str("GET ", path, "  "));
  EXPECT_TRUE(client.is_closed());
}

TEST(HttpDisconnect, AnIncompleteRequestIsRefused) {
  TestServer server;
  for (const std::string_view bytes :
       {"GET / HT", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"}) {
    RawHttpClient client(server.port());
    client.send(bytes);
    client.end_sending();
    EXPECT_EQ(client.response().status, 400) << bytes;
    EXPECT_TRUE(client.is_closed());
  }
  EXPECT_EQ(server->stats().requests, 0);
}

TEST(HttpDisconnect, UrgentDataIsNone) {
  TestServer server;
  HeldRequest held(server);
  ::send(held.client.fd(), "!", 1, MSG_OOB);
  held.client.end_sending();
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(*held.num_gone, 0);
  held.exchange->respond(200, "text/plain", "");
  EXPECT_EQ(held.client.response().status, 200);
}

TEST(HttpDisconnect, IsToldToThoseWhoAskLate) {
  TestServer server;
  HeldRequest held(server);
  held.client.close();
  ASSERT_TRUE(held.is_gone(1s));
  int told = 0;
  held.exchange->on_gone([&] { ++told; });
  EXPECT_EQ(told, 1);
}

TEST(HttpDisconnect, IsNotToldBehindTheResponse) {
  TestServer server;
  HeldRequest held(server);
  held.exchange->respond(200, "text/plain", "");
  held.client.response();
  held.client.close();
  EXPECT_FALSE(held.is_gone(50ms));
}

TEST(HttpDisconnect, OfAUnixSocketIsSeen) {
  const std::string path = std::filesystem::temp_directory_path() / str("headrace_gone_", getpid());
  TestServer server({.hosts = {}, .uds = path});
  RawHttpClient client(path);
  client.send(raw_request("GET", "/hold"));
  const auto exchange = server.held();
  client.end_sending();
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(exchange->is_closed());
  client.close();
  for (const auto until = Clock::now() + 1s; !exchange->is_closed() && Clock::now() < until;)
    std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(exchange->is_closed());
}

}  // namespace
}  // namespace headrace
