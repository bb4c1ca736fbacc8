// The exam of a running server (headrace serve): requests that broke servers elsewhere, and what must hold after each.
// Usage: exam --program HEADRACE --model DIRECTORY [--side-library FILE] [--quick] [--patience N] [--json] [--list]
// [CASE...]
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "exam/exam.h"
#include "headrace/text/json_string.h"

namespace headrace::exam {
namespace {

constexpr int kRepeats = 3;  // of each case in a long exam: what leaks a little leaks more

struct Arguments {
  Exam::Files files;
  bool is_quick = false, is_json = false, lists = false;
  std::vector<std::string> names;
};

constexpr const char* kUsage =
    "usage: exam --program HEADRACE --model DIRECTORY [--side-library FILE] [--quick] [--patience N] [--json] [--list] "
    "[CASE...]\n"
    "--patience N: N times the time for everything that is limited, for a busy machine\n"
    "CASE: a case, A3, or a group, A; without one all are run\n";

int number_of(const std::string& text) {
  require(!text.empty() && text.size() < 4 && text.find_first_not_of("0123456789") == std::string::npos && text != "0",
          "--patience: is '" + text + "', expected a whole number from 1 to 999");
  return std::stoi(text);
}

Arguments arguments_of(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = word == "--program" || word == "--model" || word == "--side-library" || word == "--patience";
    require(!has_value || i + 1 < argc, word + " has no value");
    if (word == "--program")
      a.files.program = argv[++i];
    else if (word == "--model")
      a.files.model = argv[++i];
    else if (word == "--side-library")
      a.files.side_library = argv[++i];
    else if (word == "--patience")
      patience = number_of(argv[++i]);
    else if (word == "--quick")
      a.is_quick = true;
    else if (word == "--json")
      a.is_json = true;
    else if (word == "--list")
      a.lists = true;
    else if (word.starts_with('-'))
      throw ExamFailure("unknown option '" + word + "'");
    else
      a.names.push_back(word);
  }
  require(a.lists || (!a.files.program.empty() && !a.files.model.empty()), "--program or --model is missing");
  return a;
}

std::vector<ExamCase> all_cases() {
  std::vector<ExamCase> all;
  for (const auto* cases : {&request_cases(), &transport_cases(), &engine_cases(), &lifecycle_cases()})
    all.insert(all.end(), cases->begin(), cases->end());
  return all;
}

// "A" and "A1" mean A1a and A1b, but "A1" not A15.
bool is_meant(const ExamCase& one, const Arguments& a) {
  if (a.names.empty()) return !a.is_quick || one.when == ExamCase::When::kAlways;
  for (const std::string& name : a.names) {
    const std::string_view rest = one.name.starts_with(name) ? one.name.substr(name.size()) : "?";
    const bool ends_in_number = name.back() >= '0' && name.back() <= '9';
    if (rest.empty() || (rest != "?" && !(ends_in_number && rest.front() >= '0' && rest.front() <= '9'))) return true;
  }
  return false;
}

std::string failure_of(Exam& exam, const ExamCase& one) {
  try {
    for (int i = 0; i < (exam.is_quick() ? 1 : kRepeats); ++i) {
      one.run(exam);
      exam.check_shared();
    }
  } catch (const std::exception& error) {
    exam.restart();  // the next case begins anew
    return error.what();
  }
  return "";
}

std::string shortened(const std::string& text) { return text.size() > 600 ? text.substr(0, 600) + "..." : text; }

bool run_case(Exam& exam, const ExamCase& one, bool is_json) {
  if (!is_json) std::printf("%-5s %s ... ", std::string(one.name).c_str(), std::string(one.title).c_str());
  std::fflush(stdout);
  const auto begin = Clock::now();
  const std::string failure = shortened(failure_of(exam, one));
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (is_json) {
    std::printf("%s\n", str(R"({"case": )", json_string(one.name), R"(, "title": )", json_string(one.title),
                            R"(, "ok": )", failure.empty() ? "true" : "false", R"(, "seconds": )", seconds,
                            R"(, "failure": )", failure.empty() ? "null" : json_string(failure), "}")
                            .c_str());
  } else {
    std::printf(failure.empty() ? "ok (%.2f s)%s\n" : "FAILED (%.2f s): %s\n", seconds, failure.c_str());
  }
  std::fflush(stdout);
  return failure.empty();
}

int run(const Arguments& a) {
  Exam exam(a.files, a.is_quick);
  const auto begin = Clock::now();
  int passed = 0, total = 0;
  for (const ExamCase& one : all_cases()) {
    if (!is_meant(one, a)) continue;
    ++total;
    passed += run_case(exam, one, a.is_json) ? 1 : 0;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf(a.is_json ? "{\"passed\": %d, \"total\": %d, \"seconds\": %.1f}\n" : "%d of %d in %.1f s\n", passed,
              total, seconds);
  require(total > 0, "no case has this name; --list names them");
  return passed == total ? 0 : 1;
}

// Thousands of connections are thousands of files; both processes have this limit.
void raise_file_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace
}  // namespace headrace::exam

int main(int argc, char** argv) {
  using namespace headrace::exam;
  try {
    const Arguments arguments = arguments_of(argc, argv);
    raise_file_limit();
    if (!arguments.lists) return run(arguments);
    for (const ExamCase& one : all_cases())
      std::printf("%-5s %s%s\n", std::string(one.name).c_str(), std::string(one.title).c_str(),
                  one.when == ExamCase::When::kWhenLong ? " (not in --quick)" : "");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exam: %s\n%s", error.what(), kUsage);
    return 2;
  }
}
