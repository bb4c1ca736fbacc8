#include "support/fuzz.h"

#include <gtest/gtest.h>

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <thread>

#include "headrace/core/error.h"

namespace headrace::testing_support {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// A kernel that hangs cannot be interrupted: the process ends, and says where.
class Watchdog {
 public:
  Watchdog(double seconds, std::string text)
      : thread_([this, limit = std::chrono::duration<double>(seconds),
                 text = std::move(text)](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          if (ended_.wait_for(lock, stop, limit, [&] { return stop.stop_requested(); })) return;
          if (stop.stop_requested()) return;
          std::printf("\n%s did not end within %g s\n", text.c_str(), limit.count());
          std::fflush(stdout);
          std::_Exit(1);
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;  // stops and joins before the others are gone
};

// A seed says which case it is, to its last digit: a double has room for 53 bits of it.
template <class T>
T whole_number(const std::string& name, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  HR_REQUIRE(error == std::errc() && end == text.data() + text.size() && value >= 0, ErrorCode::kInvalidArgument, name,
             " is '", text, "', expected 0 to ", std::numeric_limits<T>::max());
  return value;
}

double number(const std::string& name, const char* text) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  HR_REQUIRE(*text != 0 && *end == 0 && value >= 0, ErrorCode::kInvalidArgument, name, " is '", text,
             "', expected a number");
  return value;
}

}  // namespace

FuzzArguments fuzz_arguments(int argc, char** argv) {
  FuzzArguments a;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    HR_REQUIRE(i + 1 < argc, ErrorCode::kInvalidArgument, "'", name, "' has no value");
    const char* value = argv[i + 1];
    const auto seed = [&] { return whole_number<uint64_t>(name, value); };
    if (name == "--backend")
      a.backend = value;
    else if (name == "--seed" || name == "--first-seed")
      a.seed = seed();
    else if (name == "--case")
      a.seed = seed(), a.cases = 1;
    else if (name == "--cases" || name == "--seeds")
      a.cases = whole_number<int64_t>(name, value);
    else if (name == "--seconds")
      a.seconds = number(name, value);
    else if (name == "--products")
      a.products = number(name, value);
    else if (name == "--watchdog")
      a.watchdog_s = number(name, value);
    else
      throw Error(ErrorCode::kInvalidArgument, str("unknown option '", name, "'"));
  }
  return a;
}

int fuzz(std::string_view program, const FuzzArguments& a, const std::function<FuzzCase(uint64_t seed)>& case_of) {
  const Clock::time_point begin = Clock::now();
  int64_t done = 0;
  for (; a.cases > 0 ? done < a.cases : seconds_since(begin) < a.seconds; ++done) {
    const uint64_t seed = a.seed + static_cast<uint64_t>(done);
    const Clock::time_point case_begin = Clock::now();
    const FuzzCase one = case_of(seed);
    std::printf("case %llu: %s", static_cast<unsigned long long>(seed), one.summary.c_str());
    std::fflush(stdout);
    const std::string name = str(program, ": case ", seed);
    std::string wrong;
    {
      const Watchdog watchdog(a.watchdog_s, name);
      wrong = one.wrong();
    }
    if (!wrong.empty()) {
      std::printf("\n%s failed: %s\nrepeat it with: %s --backend %s --products %.17g --case %llu\n", name.c_str(),
                  wrong.c_str(), std::string(program).c_str(), a.backend.c_str(), a.products,
                  static_cast<unsigned long long>(seed));
      return 1;
    }
    std::printf(" (%.2f s)\n", seconds_since(case_begin));
  }
  std::printf("%s: %lld cases in %.1f s, all right\n", std::string(program).c_str(), static_cast<long long>(done),
              seconds_since(begin));
  return 0;
}

int fuzz_main(std::string_view program, int argc, char** argv,
              const std::function<FuzzCase(uint64_t seed, const FuzzArguments&)>& case_of) {
  GTEST_FLAG_SET(throw_on_failure, true);  // there is no test around the problems' own assertions
  try {
    const FuzzArguments arguments = fuzz_arguments(argc, argv);
    return fuzz(program, arguments, [&](uint64_t seed) { return case_of(seed, arguments); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\nusage: %s %s\n", std::string(program).c_str(), error.what(),
                 std::string(program).c_str(), std::string(kFuzzUsage).c_str());
    return 2;
  }
}

}  // namespace headrace::testing_support
