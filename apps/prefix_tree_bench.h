// Rows of `headrace bench engine`: the prefix cache alone.
#pragma once

namespace headrace::app {

// Prints one JSON object per line and case: the microseconds of CPU time that a page costs by cached pages (1e3 to 1e6)
// and page size. match: find it and become its user. insert: add it and give it back later. evict: of the least
// recently used one. median_us is their sum, with its goal (null: none is set).
void bench_prefix_tree();

}  // namespace headrace::app
