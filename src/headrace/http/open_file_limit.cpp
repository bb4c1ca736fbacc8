#include "headrace/http/open_file_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace headrace {

int64_t raise_open_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised{.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  const rlim_t now = setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
  return static_cast<int64_t>(std::min<rlim_t>(now, std::numeric_limits<int64_t>::max()));  // RLIM_INFINITY
}

}  // namespace headrace
