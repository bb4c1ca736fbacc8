#include "headrace/http/http_server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "http/test_server.h"
#include "support/refusal.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;
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
  EXPECT_EQ(response.header("content-length"), "20");
  EXPECT_TRUE(response.header("date").ends_with(" GMT"));
  EXPECT_EQ(client.request(raw_request("GET", "/again")).body, "GET /again  ") << "the connection goes on";
  EXPECT_EQ(server->stats().requests, 2);
  EXPECT_EQ(server->stats().connections, 1);
}

TEST(HttpServer, TellsTheHandlerWhoAsks) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send(raw_request("GET", "/hold", {}, "X-Request-Id: mine-1\r\nAuthorization: Bearer a\r\n"));
  const auto exchange = server.held();
  EXPECT_EQ(exchange->request().id, "mine-1");
  EXPECT_TRUE(exchange->request().peer.starts_with("127.0.0.1:"));
  EXPECT_EQ(*exchange->request().header("authorization"), "Bearer a");
  exchange->respond(200, "text/plain", "");
  EXPECT_EQ(client.response().header("x-request-id"), "mine-1");
}

TEST(HttpServer, MakesIdsOfItsOwn) {
  TestServer server;
  RawHttpClient client(server.port());
  const auto id_for = [&](std::string_view header) {
    return client.request(raw_request("GET", "/", {}, header)).header("x-request-id");
  };
  const std::string first = id_for({}), second = id_for({});
  EXPECT_TRUE(first.starts_with("req-"));
  EXPECT_NE(first, second);
  EXPECT_TRUE(id_for("X-Request-Id: a b\r\n").starts_with("req-"));
  EXPECT_TRUE(id_for("X-Request-Id: \xc3\xa4\r\n").starts_with("req-"));
  EXPECT_TRUE(id_for("X-Request-Id:\r\n").starts_with("req-"));
  EXPECT_TRUE(id_for(str("X-Request-Id: ", std::string(129, 'a'), "\r\n")).starts_with("req-"));
  EXPECT_EQ(id_for(str("X-Request-Id: ", std::string(128, 'a'), "\r\n")), std::string(128, 'a'));
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
  EXPECT_EQ(client.request(raw_request("GET", "/")).status, 200) << "the connection goes on";
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  TestServer server;
  RawHttpClient client(server.port());
  std::string requests = raw_request("GET", "/hold");
  for (int i = 0; i < 2000; ++i) requests += raw_request("POST", str("/", i), "body");
  client.send(requests);
  const auto exchange = server.held();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(server->stats().requests, 1) << "others wait";
  exchange->respond(202, "text/plain", "held");
  EXPECT_EQ(client.response().status, 202);
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(client.response().body, str("POST /", i, "  body"));
}

TEST(HttpServer, GoesOnBehindAnErrorOfTheHandler) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send(raw_request("GET", "/hold"));
  server.held()->respond(404, "application/json", "{}");
  EXPECT_EQ(client.response().status, 404);
  EXPECT_EQ(client.request(raw_request("GET", "/")).status, 200);
}

TEST(HttpServer, AnswersHeadWithoutABody) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send(raw_request("HEAD", "/a"));
  RawHttpResponse response = client.response(1s, "HEAD");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.header("content-length"), "9");
  client.send(raw_request("HEAD", "/hold"));
  const auto exchange = server.held();
  exchange->begin_stream(200, "text/event-stream");
  exchange->send("nothing");
  exchange->end_stream();
  EXPECT_EQ(client.response(1s, "HEAD").status, 200);
  client.send(raw_request("HEAD", "/drop"));
  EXPECT_EQ(client.response(1s, "HEAD").status, 500);
  EXPECT_EQ(client.receive_all(), "");
}

TEST(HttpServer, GivesOptionsToTheHandler) {
  TestServer server;
  RawHttpClient client(server.port());
  EXPECT_EQ(client.request(raw_request("OPTIONS", "*")).body, "OPTIONS *  ");
  client.send(raw_request("OPTIONS", "/hold"));
  server.held()->respond(204, {}, {}, {{"Allow", "GET"}});
  const RawHttpResponse response = client.response();
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.header("content-length"), "") << "204 has no body";
  EXPECT_EQ(client.request(raw_request("GET", "/")).status, 200);
}

TEST(HttpServer, SpeaksHttp10) {
  TestServer server;
  RawHttpClient once(server.port()), more(server.port()), stream(server.port());
  EXPECT_EQ(once.request("GET /a HTTP/1.0\r\n\r\n").body, "GET /a  ");
  EXPECT_TRUE(once.is_closed());
  EXPECT_EQ(more.request("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").header("connection"), "keep-alive");
  EXPECT_EQ(more.request("GET /b HTTP/1.0\r\n\r\n").body, "GET /b  ");
  stream.send("GET /hold HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto exchange = server.held();
  exchange->begin_stream(200, "text/plain");
  exchange->send("pieces without chunks");
  exchange->end_stream();
  const RawHttpResponse response = stream.response();
  EXPECT_EQ(response.header("transfer-encoding"), "");
  EXPECT_EQ(response.header("connection"), "close");
  EXPECT_EQ(response.body, "pieces without chunks");
}

TEST(HttpServer, ClosesWhenTheClientAsks) {
  TestServer server;
  RawHttpClient client(server.port());
  EXPECT_EQ(client.request(raw_request("GET", "/", {}, "Connection: close\r\n")).header("connection"), "close");
  EXPECT_TRUE(client.is_closed());
}

TEST(HttpServer, InvitesABodyThatWaits) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send("POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(client.request("hello").body, "POST /a  hello");
  client.send("POST /b HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_TRUE(client.receive_until("\r\n\r\n").starts_with("HTTP/1.1 200 OK")) << "the body came already";
}

TEST(HttpServer, AHandlerThatThrowsIsA500) {
  TestServer server;
  for (const std::string_view path : {"/throw", "/drop"}) {
    RawHttpClient client(server.port());
    const RawHttpResponse response = client.request(raw_request("GET", path));
    EXPECT_EQ(response.status, 500);
    EXPECT_EQ(response.body, "{\"code\":500,\"message\":\"the server failed within this request\"}");
    EXPECT_TRUE(client.is_closed());
  }
  EXPECT_EQ(server->stats().refused_requests, 2);
}

TEST(HttpServer, AStreamThatIsDroppedEndsUnfinished) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send(raw_request("GET", "/hold"));
  auto exchange = server.held();
  exchange->begin_stream(200, "text/plain");
  exchange->send("a piece");
  client.receive_until("a piece\r\n");
  exchange.reset();
  EXPECT_TRUE(client.is_closed());
  EXPECT_TRUE(server->wait_until_idle(1s));
}

TEST(HttpServer, RefusesResponsesOutOfOrder) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send(raw_request("GET", "/hold"));
  const auto exchange = server.held();
  EXPECT_THROW(exchange->send("before the head"), Error);
  EXPECT_THROW(exchange->end_stream(), Error);
  EXPECT_THROW(exchange->begin_stream(204, "text/plain"), Error);
  exchange->begin_stream(200, "text/plain");
  EXPECT_THROW(exchange->respond(200, "text/plain", "twice"), Error);
  exchange->end_stream();
  EXPECT_THROW(exchange->send("behind the end"), Error);
  EXPECT_TRUE(client.response().is_complete);
}

TEST(HttpServer, AHeaderHasNoSecondLine) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send(raw_request("GET", "/hold"));
  server.held()->respond(200, "text/plain\r\nA: b", "", {{"C", "d\r\n\r\nbody"}});
  const RawHttpResponse response = client.response();
  EXPECT_EQ(response.header("content-type"), "text/plain  A: b");
  EXPECT_EQ(response.header("c"), "d    body");
  EXPECT_TRUE(response.header("a").empty());
}

TEST(HttpServer, DrainsWhatRuns) {
  TestServer server;
  RawHttpClient idle(server.port()), busy(server.port()), stream(server.port());
  EXPECT_EQ(idle.request(raw_request("GET", "/")).status, 200);
  busy.send(raw_request("GET", "/hold"));
  const auto response = server.held();
  stream.send(raw_request("GET", "/hold"));
  const auto streamed = server.held();
  streamed->begin_stream(200, "text/plain");
  streamed->send("1");
  server->stop_accepting();
  EXPECT_TRUE(idle.is_closed());
  EXPECT_THROW(RawHttpClient(server.port()), Error);
  EXPECT_FALSE(server->wait_until_idle(20ms));
  response->respond(200, "text/plain", "done");
  const RawHttpResponse last = busy.response();
  EXPECT_EQ(last.body, "done");
  EXPECT_EQ(last.header("connection"), "close");
  EXPECT_TRUE(busy.is_closed());
  EXPECT_FALSE(server->wait_until_idle(20ms));
  streamed->send("2");
  streamed->end_stream();
  EXPECT_EQ(stream.response().body, "12");
  EXPECT_TRUE(stream.is_closed());
  EXPECT_TRUE(server->wait_until_idle(1s));
}

TEST(HttpServer, ItsEndIsThatOfOpenRequests) {
  TestServer server;
  RawHttpClient client(server.port());
  client.send(raw_request("GET", "/hold"));
  const auto exchange = server.held();
  bool is_gone = false;
  exchange->on_gone([&] { is_gone = true; });
  exchange->begin_stream(200, "text/plain");
  server.stop();
  EXPECT_TRUE(is_gone);
  EXPECT_TRUE(exchange->is_closed());
  exchange->send("goes nowhere");
  exchange->end_stream();
  EXPECT_TRUE(client.is_closed());
}

TEST(HttpServer, TellsWhyItCannotListen) {
  TestServer server;
  const auto listen = [](const HttpServerConfig& config) { const HttpServer server_of(config, {}, {}); };
  try {
    listen({.port = server.port()});
    FAIL() << "two servers on one port";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              str("cannot listen on 127.0.0.1 port ", server.port(), ": Address already in use"));
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_TRUE(is_address_in_use(error));
  }
  try {
    listen({.hosts = {"192.0.2.1"}, .port = 0});
    FAIL() << "an address of no interface";
  } catch (const Error& error) {
    EXPECT_FALSE(is_address_in_use(error));
    EXPECT_EQ(std::string(error.what()), "cannot listen on 192.0.2.1 port 0: Cannot assign requested address");
  }
  EXPECT_THROW(listen({.hosts = {"no such host"}}), Error);
  EXPECT_THROW(listen({.hosts = {}}), Error);
  EXPECT_THROW(listen({.hosts = {}, .uds = "/no/such/folder/socket"}), Error);
  EXPECT_THROW(listen({.hosts = {}, .uds = std::string(200, 'a')}), Error);
}

TEST(HttpServer, ListensOnSeveralHosts) {
  TestServer server({.hosts = {"127.0.0.1", "127.0.0.2"}});
  EXPECT_EQ(RawHttpClient(server.port()).request(raw_request("GET", "/")).status, 200);
  EXPECT_THROW(HttpServer({.hosts = {"127.0.0.2"}, .port = server.port()}, {}, {}), Error) << "this server's";
}

TEST(HttpServer, ListensOnAUnixSocket) {
  const std::string path = std::filesystem::temp_directory_path() / str("headrace_http_", getpid());
  {
    TestServer server({.hosts = {"127.0.0.1"}, .uds = path});
    RawHttpClient client(path);
    client.send(raw_request("GET", "/hold"));
    const auto exchange = server.held();
    EXPECT_EQ(exchange->request().peer, "unix");
    exchange->respond(200, "text/plain", "");
    EXPECT_EQ(client.response().status, 200);
    EXPECT_EQ(RawHttpClient(server.port()).request(raw_request("GET", "/")).status, 200) << "beside the hosts";
    try {
      const HttpServer second({.hosts = {}, .uds = path}, {}, {});
      FAIL() << "two servers on one path";
    } catch (const Error& error) {
      EXPECT_TRUE(is_address_in_use(error));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(HttpServer, ReplacesAUnixSocketThatNobodyListensOn) {
  const std::string path = std::filesystem::temp_directory_path() / str("headrace_dead_", getpid());
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  TestServer server({.hosts = {}, .uds = path});
  EXPECT_EQ(RawHttpClient(path).request(raw_request("GET", "/")).status, 200);
}

TEST(HttpServer, ReplacesNoFile) {
  const std::string path = std::filesystem::temp_directory_path() / str("headrace_file_", getpid());
  fclose(fopen(path.c_str(), "w"));
  EXPECT_THROW(HttpServer({.hosts = {}, .uds = path}, {}, {}), Error);
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
}

// Streams whose pieces come from several threads, clients that go at any time, and stats() beside them.
TEST(HttpServer, TakesPiecesFromAnyThread) {
  TestServer server;
  constexpr int kStreams = 32, kPieces = 200, kThreads = 4;
  std::vector<RawHttpClient> clients;
  std::vector<std::shared_ptr<HttpExchange>> streams;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(raw_request("GET", "/hold"));
    streams.push_back(server.held());
    streams.back()->begin_stream(200, "text/plain");
    streams.back()->on_gone([&server] { server->stats(); });
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int piece = 0; piece < kPieces; ++piece) {
        for (int i = t; i < kStreams; i += kThreads) streams[static_cast<size_t>(i)]->send(str(piece, ";"));
      }
      for (int i = t; i < kStreams; i += kThreads) streams[static_cast<size_t>(i)]->end_stream();
    });
  }
  for (size_t i = 0; i < kStreams; i += 8) clients[i].reset();
  std::string expected;
  for (int piece = 0; piece < kPieces; ++piece) expected += str(piece, ";");
  for (size_t i = 0; i < kStreams; ++i) {
    if (i % 8 == 0) continue;
    EXPECT_EQ(clients[i].response().body, expected) << i;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(server->wait_until_idle(10s));
}

}  // namespace
}  // namespace headrace
