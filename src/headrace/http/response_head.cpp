#include "headrace/http/response_head.h"

#include <array>
#include <charconv>

#include "headrace/core/error.h"

namespace headrace {
namespace {

std::string_view reason_of(int status) {
  switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "";
  }
}

// A line end would begin a header that nobody meant to send.
void add_text(std::string& out, std::string_view text) {
  for (const char c : text) out += c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
}

void add_header(std::string& out, std::string_view name, std::string_view value) {
  add_text(out, name);
  out += ": ";
  add_text(out, value);
  out += "\r\n";
}

}  // namespace

bool has_body(int status) { return status >= 200 && status != 204 && status != 304; }

std::string format_head(const ResponseHead& head, const ConnectionHeaders& connection) {
  std::string out = str(kHttpVersion, head.status, ' ', reason_of(head.status), "\r\n");
  out.reserve(512);
  add_header(out, "Date", connection.date);
  add_header(out, "Server", "headrace");
  if (!head.content_type.empty()) add_header(out, "Content-Type", head.content_type);
  if (!has_body(head.status)) {
  } else if (connection.content_length) {
    add_header(out, "Content-Length", str(*connection.content_length));
  } else if (connection.is_http11) {
    add_header(out, "Transfer-Encoding", "chunked");
  }
  if (!connection.keeps_alive) {
    add_header(out, "Connection", "close");
  } else if (!connection.is_http11) {
    add_header(out, "Connection", "keep-alive");
  }
  add_header(out, "X-Request-Id", connection.request_id);
  for (const auto& [name, value] : head.headers) {
    if (name != "connection") add_header(out, name, value);  // it was heard: keeps_alive
  }
  return out += "\r\n";
}

std::string http_date(std::time_t time) {
  constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc{};
  gmtime_r(&time, &utc);
  const auto two = [](int number) { return str(number < 10 ? "0" : "", number); };
  return str(kDays.at(static_cast<size_t>(utc.tm_wday)), ", ", two(utc.tm_mday), " ",
             kMonths.at(static_cast<size_t>(utc.tm_mon)), " ", utc.tm_year + 1900, " ", two(utc.tm_hour), ":",
             two(utc.tm_min), ":", two(utc.tm_sec), " GMT");
}

void append_chunk(std::string& out, std::string_view piece) {
  if (piece.empty()) return;
  std::array<char, 16> size{};
  const char* const begin = size.data();
  const char* const end = std::to_chars(size.data(), size.data() + size.size(), piece.size(), 16).ptr;
  out.reserve(out.size() + piece.size() + 24);  // so that all of it is added, or nothing
  out.append(begin, end).append("\r\n").append(piece).append("\r\n");
}

}  // namespace headrace
