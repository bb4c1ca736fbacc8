// A line chart as SVG text, for a curve that a command measured.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace headrace::app {

struct Series {
  struct Point {
    double x = 0, y = 0;
    std::string label;  // shown when the pointer rests on it
    std::string name;   // drawn beside it; empty: nothing
  };
  std::string name;
  std::vector<Point> points;  // joined in this order
};

struct Chart {
  std::string title, x_axis, y_axis;
  std::vector<Series> series;
  std::optional<Series::Point> baseline;  // its name is in the legend, and a line runs across at its height
};

// Both axes begin at 0 and hold all points; up to 1 and to 100 where there is none. Each series has its colour and its
// shape of points, and its line is narrower than those under it, so that equal lines all show. The text of the chart
// may hold any characters.
std::string curve_svg(const Chart& chart);

}  // namespace headrace::app
