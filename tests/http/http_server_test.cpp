#include "headrace/http/http_server.h"

#include <gtest/gtest.h>

#include <thread>

#include "http/test_server.h"

namespace headrace {
namespace {

using testing_support::raw_request;
using testing_support::RawHttpClient;
using testing_support::RawHttpResponse;
using testing_support::TestServer;

TEST(HttpServer, AnswersARequest) {
  TestServer server;
  RawHttpClient client(server.port());
  const RawHttpResponse response = client.request(raw_request("POST", "/echo?a=1", "hello"));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "POST /echo a=1 hello");
  EXPECT_EQ(response.header("content-type"), "text/plain");
  EXPECT_FALSE(response.header("date").empty());
  EXPECT_FALSE(response.header("x-request-id").empty());
  EXPECT_EQ(client.request(raw_request("GET", "/again")).body, "GET /again  ") << "the connection goes on";
  EXPECT_EQ(server->stats().requests, 2);
}

TEST(HttpServer, StreamsPieces) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send(raw_request("GET", "/hold"));
  const auto exchange = server.held();
  exchange->begin_stream(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
  std::thread sender([&] {
    for (const char* piece : {"one ", "two ", "", "three"}) exchange->send(piece);
    exchange->end_stream();
  });
  const RawHttpResponse response = client.response();
  sender.join();
  EXPECT_EQ(response.header("cache-control"), "no-cache");
  EXPECT_EQ(response.body, "one two three");
  EXPECT_TRUE(response.is_complete);
}

}  // namespace
}  // namespace headrace
