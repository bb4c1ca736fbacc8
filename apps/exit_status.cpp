#include "exit_status.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <system_error>

#include "headrace/core/error.h"
#include "output.h"

namespace headrace::app {
namespace {

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kCancelled:
    case ErrorCode::kUnsupported: return kUsage;
    case ErrorCode::kModelFile:
    case ErrorCode::kIo: return kModelFiles;
    case ErrorCode::kOutOfMemory: return kMemory;
    case ErrorCode::kNoDevice:
    case ErrorCode::kCuda: return kDevice;
    case ErrorCode::kInternal: return kBug;
  }
  return kBug;
}

}  // namespace

int guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& e) {
    const std::string bug = e.code() == ErrorCode::kInternal ? "bug: " : "";
    write_err(fmt::format("headrace: {}{}\n", bug, without_controls(e.what())));
    return status_of(e.code());
  } catch (const std::bad_alloc&) {
    write_err("headrace: out of memory\n");
    return kMemory;
  } catch (const std::system_error& e) {
    const bool is_full = e.code() == std::errc::resource_unavailable_try_again;  // as std::thread says it
    write_err(fmt::format("headrace: {}: {}\n", is_full ? "no thread can be started" : "bug", e.what()));
    return is_full ? kMemory : kBug;
  } catch (const std::exception& e) {
    write_err(fmt::format("headrace: bug: {}\n", without_controls(e.what())));
    return kBug;
  }
}

}  // namespace headrace::app
