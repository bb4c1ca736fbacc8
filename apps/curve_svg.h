// A line chart as SVG text, for a curve that a command measured.
#pragma once
#include <string>
#include <vector>

namespace headrace::app {

struct Series {
  struct Point {
    double x = 0, y = 0;
    std::string label;  // shown when the pointer rests on it
  };
  std::string name;
  std::vector<Point> points;  // joined in this order
};

struct Chart {
  std::string title, x_axis, y_axis;
  std::vector<Series> series;
};

// Axes from 0 (x) and from the lowest point, rounded down (y); up to 1 and from 0 to 100 where there is no point. The
// text of the chart may hold any characters.
std::string curve_svg(const Chart& chart);

}  // namespace headrace::app
