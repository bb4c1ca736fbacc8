#include "parse_line.h"

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <sstream>

#include "command_line.h"
#include "environment.h"
#include "exit_status.h"
#include "flag_names.h"
#include "headrace/core/error.h"
#include "help_formatter.h"
#include "output.h"
#include "suggest.h"
#include "terminal.h"

namespace headrace::app {
namespace {

int misused(const std::string& why) {
  write_err(fmt::format("headrace: {}\n", why));
  return kUsage;
}

void print_help(const CLI::App& app, HelpLength length) {
  const auto columns = static_cast<size_t>(help_columns(terminal_size(STDOUT_FILENO), variable("COLUMNS")));
  write_out(help_of(parsed_command(app), path_of(parsed_command(app)), length, columns));
}

// Returns one sentence that says what is wrong with the line.
std::string parse_failure(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return left_over(app);
  std::optional<std::string> message;
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) message = given_again(app);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) message = missing_option(app);
  const bool excludes = dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr;
  if (excludes || dynamic_cast<const CLI::RequiresError*>(&error) != nullptr) message = ill_matched(app);
  return message.value_or(error.what());
}

int parsed(CLI::App& app, const std::vector<std::string>& words, const Origins& origins) {
  std::vector<const char*> line{"headrace"};
  for (const std::string& word : words) line.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(line.size()), line.data());
  } catch (const CLI::CallForHelp&) {
    print_help(app, HelpLength::kShort);
  } catch (const CLI::CallForAllHelp&) {
    print_help(app, HelpLength::kFull);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) {
      return misused(with_origin(origins, with_names(app, words, parse_failure(app, e))));
    }
    std::ostringstream version;
    app.exit(e, version);
    write_out(version.str());
  } catch (const Error& e) {
    throw Error(e.code(), with_origin(origins, in_flags(parsed_command(app), e.what())));
  }
  return 0;
}

}  // namespace

int parse_line(CLI::App& app, const std::vector<std::string>& arguments, Origins& origins) {
  const std::vector<std::string> ours = in_our_words(app, with_help_options(arguments));
  const std::vector<std::string> words = with_empty_values(app, ours);
  if (const auto unknown = unknown_argument(app, words)) return misused(with_names(app, words, *unknown));
  return parsed(app, with_settings(app, words, origins), origins);
}

}  // namespace headrace::app
