#include "headrace/http/body_reader.h"

#include <algorithm>
#include <charconv>

namespace headrace {
namespace {

constexpr size_t kMaxLine = 8 << 10;  // a chunk's size and extensions; also all trailers
constexpr std::string_view kLineEnd = "\r\n";

bool is_printable(char c) { return c == '\t' || (static_cast<uint8_t>(c) >= ' ' && c != 127); }

}  // namespace

BodyReader::Result BodyReader::read(std::string& input, std::string& body, size_t max_bytes) {
  std::string_view rest = input;
  Result result = Result::kMore;
  for (size_t before = rest.size() + 1; result == Result::kMore && rest.size() < before;) {
    before = rest.size();
    result = step(rest, body, max_bytes);
  }
  input.erase(0, input.size() - rest.size());
  return result;
}

// Takes one line or what there is of the data; kMore with nothing taken: its end is missing.
BodyReader::Result BodyReader::step(std::string_view& input, std::string& body, size_t max_bytes) {
  if (phase_ == Phase::kData) return read_data(input, body);
  const size_t end = input.substr(0, kMaxLine).find('\n');
  if (end == input.npos) return input.size() >= kMaxLine ? Result::kBad : Result::kMore;
  if (end == 0 || input[end - 1] != '\r') return Result::kBad;
  const std::string_view line = input.substr(0, end - 1);
  if (!std::ranges::all_of(line, is_printable)) return Result::kBad;
  input.remove_prefix(end + 1);
  if (phase_ == Phase::kSize) return read_size(line, max_bytes - body.size());
  if (phase_ == Phase::kTrailers) return read_trailer(line);
  phase_ = Phase::kSize;
  return line.empty() ? Result::kMore : Result::kBad;
}

BodyReader::Result BodyReader::read_data(std::string_view& input, std::string& body) {
  const size_t size = std::min<uint64_t>(left_, input.size());
  body += input.substr(0, size);
  input.remove_prefix(size);
  left_ -= size;
  if (left_ > 0) return Result::kMore;
  phase_ = Phase::kDataEnd;
  return is_chunked_ ? Result::kMore : Result::kDone;
}

BodyReader::Result BodyReader::read_size(std::string_view line, size_t room) {
  const char* const last = line.data() + line.size();
  int64_t size = 0;  // a sign is no hex digit, and the rest of a 64-bit range no size
  const auto [end, error] = std::from_chars(line.data(), last, size, 16);
  if (error != std::errc() || line.starts_with('-') || (end != last && *end != ';')) return Result::kBad;
  left_ = static_cast<uint64_t>(size);
  if (left_ > room) return Result::kTooLong;
  phase_ = left_ == 0 ? Phase::kTrailers : Phase::kData;
  return Result::kMore;
}

BodyReader::Result BodyReader::read_trailer(std::string_view line) {
  if (line.empty()) return Result::kDone;
  trailer_bytes_ += line.size() + kLineEnd.size();
  const size_t colon = line.find(':');
  return colon == 0 || colon == line.npos || trailer_bytes_ > kMaxLine ? Result::kBad : Result::kMore;
}

}  // namespace headrace
