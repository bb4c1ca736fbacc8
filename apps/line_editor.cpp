#include "line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <clocale>
#include <csignal>
#include <cwchar>
#include <string_view>
#include <utility>

#include "environment.h"
#include "headrace/core/error.h"
#include "interrupt.h"
#include "output.h"

namespace headrace::app {
namespace {

constexpr const char *kBeginPastes = "\x1b[?2004h", *kEndPastes = "\x1b[?2004l";
constexpr std::wstring_view kPasteEnds = L"\x1b[201~";

std::wstring wide(const std::string& text) {
  std::wstring out(text.size(), L'\0');
  std::mbstate_t state = {};
  const char* bytes = text.c_str();
  // NOLINTNEXTLINE(concurrency-mt-unsafe): it is safe with a state of its own
  const size_t size = std::mbsrtowcs(out.data(), &bytes, out.size(), &state);
  out.resize(size == static_cast<size_t>(-1) ? 0 : size);
  return out;
}

std::string narrow(const wchar_t* text) {
  std::mbstate_t state = {};
  std::string out(std::wcslen(text) * MB_LEN_MAX, '\0');
  // NOLINTNEXTLINE(concurrency-mt-unsafe): it is safe with a state of its own
  const size_t size = std::wcsrtombs(out.data(), &text, out.size(), &state);
  out.resize(size == static_cast<size_t>(-1) ? 0 : size);
  return out;
}

// A handler sets nothing but these.
std::atomic<bool> resized{false}, continued{false};

extern "C" void on_terminal_change(int signal) { (signal == SIGCONT ? continued : resized) = true; }

// Notices, while it lives, that the window is resized, or that the program goes on after Ctrl-Z.
class TerminalChanges {
 public:
  TerminalChanges() {
    struct sigaction action = {};
    action.sa_handler = on_terminal_change;
    sigaction(SIGWINCH, &action, &resize_);
    sigaction(SIGCONT, &action, &continue_);
  }
  TerminalChanges(const TerminalChanges&) = delete;
  TerminalChanges& operator=(const TerminalChanges&) = delete;
  ~TerminalChanges() {
    sigaction(SIGWINCH, &resize_, nullptr);
    sigaction(SIGCONT, &continue_, nullptr);
  }

 private:
  struct sigaction resize_ = {}, continue_ = {};
};

// A signal may reach another thread, and then ends no wait of this one.
bool wait_for_input() {
  constexpr int kLookAgain = 100;  // ms
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return poll(&input, 1, kLookAgain) > 0;
}

}  // namespace

struct LineEditor::Parts {
  LineHistory history;
  EditLine* editor = nullptr;
  HistoryW* past = nullptr;
  std::string prompt, given_up;

  static Parts& of(EditLine* editor) {
    void* parts = nullptr;
    el_get(editor, EL_CLIENTDATA, &parts);
    return *static_cast<Parts*>(parts);
  }
  static char* prompt_of(EditLine* editor) { return of(editor).prompt.data(); }
  static int read_key(EditLine* editor, wchar_t* key);
  static unsigned char paste(EditLine* editor, int);

  void bind_keys() const;
  void recall(const std::string& line) const;  // by the arrow keys
};

// Returns 1, 0 at the end of the input, or -1 when the line is to be given up.
int LineEditor::Parts::read_key(EditLine* editor, wchar_t* key) {
  std::mbstate_t state = {};
  for (;;) {
    while (!wait_for_input()) {
      if (interrupted()) {
        const LineInfoW* const line = el_wline(editor);
        of(editor).given_up = narrow(std::wstring(line->buffer, line->lastchar).c_str());
        return -1;
      }
      if (resized.exchange(false)) el_resize(editor);
      if (continued.exchange(false)) el_set(editor, EL_PREP_TERM, 1), el_set(editor, EL_REFRESH);
    }
    char byte = 0;
    const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
    if (n <= 0) return n == 0 ? 0 : -1;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): it is safe with a state of its own
    const size_t bytes = std::mbrtowc(key, &byte, 1, &state);
    if (bytes == static_cast<size_t>(-2)) continue;  // more of the character follows
    if (bytes == static_cast<size_t>(-1)) *key = L'\xfffd', state = {};
    return 1;
  }
}

// Pasted bytes are text, line feeds included, and no keys.
unsigned char LineEditor::Parts::paste(EditLine* editor, int) {
  std::wstring text;
  wchar_t key = 0;
  while (!text.ends_with(kPasteEnds)) {
    if (read_key(editor, &key) != 1) return CC_ERROR;
    text += key == L'\r' ? L'\n' : key;
  }
  text.resize(text.size() - kPasteEnds.size());
  std::erase_if(text, [](wchar_t c) { return (c < L' ' && c != L'\n' && c != L'\t') || c == L'\x7f'; });
  return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

void LineEditor::Parts::bind_keys() const {
  el_set(editor, EL_ADDFN, "headrace-paste", "Insert a pasted text", &paste);
  constexpr std::pair<const char*, const char*> kKeys[] = {
      {"\x1b[200~", "headrace-paste"}, {"\x1b[3~", "ed-delete-next-char"}, {"\x1b[H", "ed-move-to-beg"},
      {"\x1b[F", "ed-move-to-end"},    {"\x1b[1~", "ed-move-to-beg"},      {"\x1b[4~", "ed-move-to-end"},
      {"\x1b[1;5D", "ed-prev-word"},   {"\x1b[1;5C", "em-next-word"},      {"^R", "em-inc-search-prev"},
      {"^W", "ed-delete-prev-word"}};
  for (const auto& [keys, action] : kKeys) el_set(editor, EL_BIND, keys, action, nullptr);
}

void LineEditor::Parts::recall(const std::string& line) const {
  HistEventW event;
  const std::wstring text = wide(line);
  if (!text.empty()) history_w(past, &event, H_ENTER, text.c_str());
}

LineEditor::LineEditor(LineHistory history) : parts_(new Parts{.history = std::move(history)}) {
  // Characters of several bytes; no other thread prints or classifies any.
  std::setlocale(LC_CTYPE, "C.UTF-8");  // NOLINT(concurrency-mt-unsafe)
  FILE* const out = isatty(STDOUT_FILENO) != 0 ? stdout : stderr;
  EditLine* const editor = parts_->editor = el_init("headrace", stdin, out, stderr);
  HR_REQUIRE(editor != nullptr, ErrorCode::kIo, "standard input: cannot be read line by line");
  el_set(editor, EL_CLIENTDATA, parts_.get());
  el_set(editor, EL_PROMPT, &Parts::prompt_of);
  el_set(editor, EL_EDITOR, "emacs");
  el_wset(editor, EL_GETCFN, &Parts::read_key);
  parts_->past = history_winit();
  HistEventW event;
  history_w(parts_->past, &event, H_SETSIZE, static_cast<int>(LineHistory::kMost));
  el_wset(editor, EL_HIST, history_w, parts_->past);
  parts_->bind_keys();
  el_source(editor, nullptr);  // ~/.editrc
  for (const std::string& line : parts_->history.lines()) parts_->recall(line);
}

LineEditor::~LineEditor() {
  history_wend(parts_->past);
  el_end(parts_->editor);
}

LineEditor::Line LineEditor::read(const std::string& prompt) {
  const TerminalChanges changes;
  parts_->prompt = prompt;
  const std::string_view term = variable("TERM");
  const bool pastes = !term.empty() && term != "dumb";
  if (pastes) write_err(kBeginPastes);
  int size = 0;
  const wchar_t* const typed = el_wgets(parts_->editor, &size);
  if (pastes) write_err(kEndPastes);
  if (typed == nullptr || size <= 0) {
    write_err("\n");
    if (take_interrupt()) return {.end = Line::End::kGivenUp, .text = std::exchange(parts_->given_up, {})};
    return {.end = Line::End::kClosed};
  }
  Line line{.text = narrow(typed)};
  if (line.text.ends_with('\n')) line.text.pop_back();
  parts_->history.add(line.text);
  parts_->recall(line.text);
  return line;
}

}  // namespace headrace::app
