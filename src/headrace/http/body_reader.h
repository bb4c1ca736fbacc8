// Takes a request's body from what its connection reads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

// A body of a known length, or in chunks. Extensions of chunks and trailers are read and dropped. Strict: a size has
// hex digits alone, and lines end in CRLF. (Beast's own reader lets an extension reach over the end of its line, bounds
// neither extensions nor trailers, and asserts on a last chunk that comes in pieces.)
class BodyReader {
 public:
  enum class Result { kMore, kDone, kTooLong, kBad };

  explicit BodyReader(uint64_t length) : phase_(Phase::kData), left_(length) {}
  static BodyReader in_chunks() { return BodyReader(Phase::kSize); }

  // Moves bytes of the body from the front of `input` to the end of `body`, which gets at most `max_bytes` long. kMore:
  // what is left of `input` is no whole line.
  Result read(std::string& input, std::string& body, size_t max_bytes);

 private:
  enum class Phase { kSize, kData, kDataEnd, kTrailers };

  explicit BodyReader(Phase phase) : is_chunked_(true), phase_(phase) {}
  Result step(std::string_view& input, std::string& body, size_t max_bytes);
  Result read_data(std::string_view& input, std::string& body);
  Result read_size(std::string_view line, size_t room);
  Result read_trailer(std::string_view line);

  bool is_chunked_ = false;
  Phase phase_;
  uint64_t left_ = 0;         // bytes of the body or chunk
  size_t trailer_bytes_ = 0;  // so far
};

}  // namespace headrace
