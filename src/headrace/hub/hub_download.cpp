#include "headrace/hub/hub_download.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <system_error>

#include "headrace/core/error.h"
#include "headrace/hub/content_hash.h"
#include "headrace/hub/file_lock.h"
#include "headrace/hub/hub_request.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollMs = 100;

// blobs/ETAG.incomplete: what is there of a file, and its hash so far. Errors: kIo.
class PartialFile {
 public:
  PartialFile(const HubStore& store, const HubFile& file)
      : file_(file),
        path_(store.incomplete(file)),
        hash_(file.etag, file.size),
        descriptor_(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    require(descriptor_ >= 0);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  int64_t size() const { return size_; }

  // Hashes what an earlier download left; none of it where that is more than the file has.
  void read_back() {
    std::vector<char> piece(size_t{1} << 20);
    while (true) {
      const ssize_t n = pread(descriptor_, piece.data(), piece.size(), size_);
      require(n >= 0);
      if (n == 0) return;
      if (size_ + n > file_.size) return clear();
      hash_.add({piece.data(), static_cast<size_t>(n)});
      size_ += n;
    }
  }

  void clear() {
    require(ftruncate(descriptor_, 0) == 0);
    hash_ = ContentHash(file_.etag, file_.size);
    size_ = 0;
  }

  void append(std::string_view bytes) {
    hash_.add(bytes);
    while (!bytes.empty()) {
      const ssize_t n = pwrite(descriptor_, bytes.data(), bytes.size(), size_);
      if (n < 0 && errno == EINTR) continue;
      require(n > 0);
      bytes.remove_prefix(static_cast<size_t>(n));
      size_ += n;
    }
  }

  std::string digits() { return hash_.digits(); }

  void become(const std::filesystem::path& blob) const {
    std::error_code error;
    std::filesystem::rename(path_, blob, error);
    HR_REQUIRE(!error, ErrorCode::kIo, blob.string(), ": cannot be written: ", error.message());
  }

  void require(bool succeeded) const {
    HR_REQUIRE(succeeded, ErrorCode::kIo, path_.string(),
               ": cannot be written: ", std::generic_category().message(errno));
  }

 private:
  const HubFile& file_;  // not owned
  std::filesystem::path path_;
  ContentHash hash_;
  int descriptor_;
  int64_t size_ = 0;
};

// One file on its way.
class Download {
 public:
  Download(const HubClient& client, const HubStore& store, const HubName& name, const std::string& commit,
           const HubFile& file)
      : client_(client),
        store_(store),
        name_(name),
        file_(file),
        url_(client.file_url(name.repository, commit, file.name)),
        left_before_(store.bytes_left_before(file)) {}

  int64_t bytes() const { return done_ ? file_.size : part_ ? part_->size() : left_before_; }
  bool done() const { return done_; }
  bool waits(Clock::time_point now) const { return now < not_before_; }
  HubRequest* request() const { return request_.get(); }

  // Begins a request, unless the file is here or another process downloads it.
  void begin() {
    if (!lock_) lock_ = FileLock::try_lock(store_.lock_file(file_));
    if (!lock_) {
      if (not_before_ == Clock::time_point()) log("another process downloads it; waiting");
      not_before_ = Clock::now() + client_.settings().first_wait;
      return;
    }
    std::error_code error;
    const auto size = std::filesystem::file_size(store_.blob(file_), error);
    if (!error && static_cast<int64_t>(size) == file_.size) return finish();
    if (!part_) {
      part_ = std::make_unique<PartialFile>(store_, file_);
      part_->read_back();
    }
    began_with_ = part_->size();
    if (began_with_ == file_.size) return check();
    request_ =
        std::make_unique<HubRequest>(client_.settings(), url_, [this](std::string_view bytes) { return take(bytes); });
    request_->begin_at(began_with_);
  }

  // The request has ended. Error where another try is of no use.
  void end(CURLcode code) {
    const std::unique_ptr<HubRequest> request = std::move(request_);
    HR_REQUIRE(fault_.empty(), ErrorCode::kIo, fault_);
    const int status = request->status();
    if (too_long_) return start_over(str("is longer than the ", file_.size, " bytes that the hub stated"));
    if (code == CURLE_OK && status == 416) return start_over(str("has no more than ", began_with_, " bytes"));
    if (part_->size() > began_with_) failures_ = 0;
    if (code == CURLE_OK && (status == 200 || status == 206)) {
      return part_->size() == file_.size
                 ? check()
                 : try_again(*request, str("ended after ", part_->size(), " of ", file_.size, " bytes"));
    }
    const bool answered = code == CURLE_OK || code == CURLE_WRITE_ERROR;
    if (answered && !is_transient(status)) throw client_.refusal(*request, name_);
    if (!answered && !is_transient(code)) throw client_.failure(*request, code);
    try_again(*request, answered ? str("status ", status) : request->fault(code));
  }

 private:
  // Takes a piece of the file. Returns false to end the request; fault_ says why, where it is this side's. libcurl
  // calls it, and lets no exception pass.
  bool take(std::string_view bytes) {
    try {
      const int status = request_->status();
      return (status == 200 || status == 206) && write(bytes, status);
    } catch (const std::exception& error) {
      fault_ = error.what();
      return false;
    }
  }

  bool write(std::string_view bytes, int status) {
    if (status == 200 && part_->size() == began_with_ && began_with_ > 0) {  // the whole file in place of its rest
      part_->clear();
      began_with_ = 0;
    }
    too_long_ = part_->size() + static_cast<int64_t>(bytes.size()) > file_.size;
    if (too_long_) return false;
    part_->append(bytes);
    return true;
  }

  void check() {
    const std::string found = part_->digits();
    if (found != file_.etag) return start_over(str("has the hash ", found, ", expected ", file_.etag));
    part_->become(store_.blob(file_));
    finish();
  }

  void finish() {
    done_ = true;
    part_.reset();
    lock_.reset();
  }

  // Contents that are wrong are downloaded once more, all of them.
  void start_over(const std::string& fault) {
    part_->clear();
    too_long_ = false;
    HR_REQUIRE(!started_over_, ErrorCode::kModelFile, name_.repository, ": ", file_.name, " ", fault,
               ", in two downloads; the hub, or what is between, sends another file than it names");
    started_over_ = true;
    log(fault + "; downloading it again");
  }

  void try_again(const HubRequest& request, const std::string& fault) {
    ++failures_;
    HR_REQUIRE(failures_ < client_.settings().tries, ErrorCode::kIo, name_.repository, ": ", file_.name,
               ": the download does not go on: ", fault, "; what is here is kept, and headrace pull ", text_of(name_),
               " continues");
    const auto wait = wait_after(failures_, request, client_.settings());
    not_before_ = Clock::now() + wait;
    log(str(fault, "; trying again in ", wait.count(), " ms"));
  }

  void log(const std::string& sentence) const {
    const LogCallback& log = client_.settings().log;
    if (log) log(LogLevel::kInfo, str(file_.name, ": ", sentence));
  }

  const HubClient& client_;  // these four are not owned
  const HubStore& store_;
  const HubName& name_;
  const HubFile& file_;
  std::string url_;
  int64_t left_before_;  // bytes
  std::optional<FileLock> lock_;
  std::unique_ptr<PartialFile> part_;
  std::unique_ptr<HubRequest> request_;
  int64_t began_with_ = 0;  // bytes before the request
  int failures_ = 0;        // since the last byte that came
  bool done_ = false, too_long_ = false, started_over_ = false;
  std::string fault_;  // of writing
  Clock::time_point not_before_{};
};

class Downloads {
 public:
  Downloads(const HubClient& client, const DownloadCallback& progress)
      : progress_(progress), parallel_(client.settings().parallel) {
    HR_ASSERT(multi_ != nullptr);
  }
  Downloads(const Downloads&) = delete;
  Downloads& operator=(const Downloads&) = delete;
  ~Downloads() {
    for (const auto& download : all_) {
      if (download->request() != nullptr) curl_multi_remove_handle(multi_.get(), download->request()->handle());
    }
  }

  void add(std::unique_ptr<Download> download, int64_t size) {
    total_ += size;
    all_.push_back(std::move(download));
  }

  void run() {
    while (true) {
      begin_more();
      const DownloadProgress now = state();
      if (progress_ && (Clock::now() >= next_report_ || now.files == static_cast<int32_t>(all_.size()))) report(now);
      if (now.files == static_cast<int32_t>(all_.size())) return;
      int running = 0;
      HR_ASSERT(curl_multi_perform(multi_.get(), &running) == CURLM_OK);
      if (end_finished()) continue;
      HR_ASSERT(curl_multi_poll(multi_.get(), nullptr, 0, kPollMs, nullptr) == CURLM_OK);
    }
  }

 private:
  struct Free {
    void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
  };

  void begin_more() {
    int running = 0;
    for (const auto& download : all_) running += download->request() != nullptr ? 1 : 0;
    for (const auto& download : all_) {
      if (running >= parallel_) return;
      if (download->done() || download->request() != nullptr || download->waits(Clock::now())) continue;
      download->begin();
      if (download->request() == nullptr) continue;  // done, or another process is at it
      HR_ASSERT(curl_multi_add_handle(multi_.get(), download->request()->handle()) == CURLM_OK);
      ++running;
    }
  }

  // Returns true if any request has ended.
  bool end_finished() {
    bool any = false;
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* const handle = message->easy_handle;
      const CURLcode code = message->data.result;
      curl_multi_remove_handle(multi_.get(), handle);
      const auto ended = std::ranges::find_if(all_, [handle](const auto& download) {
        return download->request() != nullptr && download->request()->handle() == handle;
      });
      (*ended)->end(code);
      any = true;
    }
    return any;
  }

  DownloadProgress state() const {
    DownloadProgress now{.total = total_};
    for (const auto& download : all_) {
      now.bytes += download->bytes();
      now.files += download->done() ? 1 : 0;
    }
    return now;
  }

  void report(const DownloadProgress& now) {
    next_report_ = Clock::now() + std::chrono::milliseconds(kPollMs);
    progress_(now);
  }

  const DownloadCallback& progress_;
  int32_t parallel_;
  int64_t total_ = 0;
  Clock::time_point next_report_{};
  std::unique_ptr<CURLM, Free> multi_{curl_multi_init()};
  std::vector<std::unique_ptr<Download>> all_;  // behind `multi_`: they end first
};

}  // namespace

void download(const HubClient& client, const HubStore& store, const HubName& name, const std::string& commit,
              const std::vector<HubFile>& files, const DownloadCallback& progress) {
  store.create();
  Downloads downloads(client, progress);
  for (const HubFile& file : files) {
    if (!store.has(file, commit))
      downloads.add(std::make_unique<Download>(client, store, name, commit, file), file.size);
  }
  downloads.run();
}

}  // namespace headrace
