#include "curve_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace headrace::app {
namespace {

constexpr int kWidth = 720, kHeight = 420, kLeft = 70, kRight = 150, kTop = 50, kBottom = 60;
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
// Around a point at 0, 0.
constexpr std::array kShapes = {"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "M-4 -4h8v8h-8z", "M0 -6L5 4H-5z",
                                "M0 -6L6 0L0 6L-6 0z", "M0 6L5 -4H-5z"};
constexpr std::string_view kBaselineColour = "#666";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

// Ticks at 1, 2 or 5 times a power of ten.
double tick_step(double range) {
  const double raw = range / 6, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

struct Axis {
  double high, step;
  int first, last;  // pixels of 0 and high
  double pixel(double value) const { return first + value / high * (last - first); }
};

Axis axis(double high, int first, int last) {
  const double step = tick_step(std::max(high, 1e-6));
  return {std::ceil(high / step) * step, step, first, last};
}

std::string text(double x, double y, std::string_view anchor, std::string_view value) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(value));
}

std::string grid(const Axis& x, const Axis& y) {
  std::string out = "<g stroke=\"#ddd\">\n";
  std::string labels;
  for (int i = 0; i * x.step <= x.high + x.step / 2; ++i) {
    const double value = i * x.step, at = x.pixel(value);
    out += fmt::format("<path d=\"M{:.1f} {}V{}\"/>\n", at, y.first, y.last);
    labels += text(at, y.first + 18, "middle", fmt::format("{:g}", value));
  }
  for (int i = 0; i * y.step <= y.high + y.step / 2; ++i) {
    const double value = i * y.step, at = y.pixel(value);
    out += fmt::format("<path d=\"M{} {:.1f}H{}\"/>\n", x.first, at, x.last);
    labels += text(x.first - 8, at + 4, "end", fmt::format("{:g}", value));
  }
  return out + "</g>\n" + labels;
}

// Names of points, each under its point at the first height where it covers no other, and joined to it by a thin line.
class Names {
 public:
  void add(double x, double y, std::string_view name, std::string_view colour) {
    constexpr double kFirst = 18, kLine = 12, kLetter = 6;
    const double half = kLetter * static_cast<double>(name.size()) / 2 + 2;
    double at = y + kFirst;
    const auto covers = [&](const Box& b) { return std::abs(b.x - x) < b.half + half && std::abs(b.y - at) < kLine; };
    while (std::ranges::any_of(boxes_, covers)) at += 1;
    if (at > kHeight - kBottom - 4) at = y - kFirst / 2;  // no room down to the axis
    boxes_.push_back({x, at, half});
    lines_ += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke=\"{}\" stroke-width=\"0.6\"/>\n", x, y, at, colour);
    names_ += fmt::format("<g fill=\"{}\">{}</g>\n", colour, text(x, at, "middle", name));
  }
  const std::string& lines() const { return lines_; }
  // They hide what is under them.
  std::string names() const {
    return "<g font-size=\"11\" stroke=\"white\" stroke-width=\"4\" paint-order=\"stroke\">\n" + names_ + "</g>\n";
  }

 private:
  struct Box {
    double x, y, half;
  };
  std::vector<Box> boxes_;
  std::string lines_, names_;
};

struct Style {
  std::string_view colour, shape;
  double width;  // of the line
};

std::string marker(double x, double y, const Style& style, std::string_view title) {
  return fmt::format(
      "<path transform=\"translate({:.1f} {:.1f})\" d=\"{}\" fill=\"white\" fill-opacity=\"0.6\" "
      "stroke=\"{}\" stroke-width=\"1.5\">{}</path>\n",
      x, y, style.shape, style.colour, title);
}

std::string line(const Series& series, const Axis& x, const Axis& y, const Style& style, Names& names) {
  std::string path, points;
  for (const Series::Point& p : series.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x.pixel(p.x), y.pixel(p.y));
    points += marker(x.pixel(p.x), y.pixel(p.y), style,
                     fmt::format("<title>{}: {:.2f}, {:.1f}</title>", escaped(p.label), p.x, p.y));
    if (!p.name.empty()) names.add(x.pixel(p.x), y.pixel(p.y), p.name, style.colour);
  }
  return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\"/>\n{}", path, style.colour,
                     style.width, points);
}

Style style_of(size_t series, size_t of) {
  return {.colour = kColours[series % kColours.size()],
          .shape = kShapes[series % kShapes.size()],
          .width = 1.5 + 1.5 * static_cast<double>(of - 1 - series)};
}

std::string baseline(const Series::Point& p, const Axis& x, const Axis& y) {
  const Style style{.colour = kBaselineColour, .shape = "M-5 -5L5 5M-5 5L5 -5", .width = 1.5};
  return fmt::format("<path d=\"M{} {:.1f}H{}\" fill=\"none\" stroke=\"{}\" stroke-dasharray=\"5 4\"/>\n{}", x.first,
                     y.pixel(p.y), x.last, style.colour,
                     marker(x.pixel(p.x), y.pixel(p.y), style,
                            fmt::format("<title>{}: {:.2f}, {:.1f}</title>", escaped(p.label), p.x, p.y)));
}

std::string legend(const Chart& chart) {
  std::string out;
  double at = kTop + 10;
  const auto entry = [&](const Style& style, std::string_view name, std::string_view dashes) {
    constexpr int kLine = kWidth - kRight + 14;
    out += fmt::format("<path d=\"M{} {}h24\" stroke=\"{}\" stroke-width=\"{:g}\"{}/>\n", kLine, at, style.colour,
                       style.width, dashes) +
           marker(kLine + 12, at, style, "") + text(kLine + 32, at + 5, "start", name);
    at += 22;
  };
  for (size_t i = 0; i < chart.series.size(); ++i) entry(style_of(i, chart.series.size()), chart.series[i].name, "");
  if (chart.baseline) {
    entry({.colour = kBaselineColour, .shape = "M-5 -5L5 5M-5 5L5 -5", .width = 1.5}, chart.baseline->name,
          " stroke-dasharray=\"5 4\"");
  }
  return out;
}

}  // namespace

std::string curve_svg(const Chart& chart) {
  double x_high = 0, y_high = 0;
  const auto hold = [&](const Series::Point& p) { x_high = std::max(x_high, p.x), y_high = std::max(y_high, p.y); };
  for (const Series& series : chart.series) std::ranges::for_each(series.points, hold);
  if (chart.baseline) hold(*chart.baseline);
  if (x_high == 0) x_high = 1;
  if (y_high == 0) y_high = 100;
  constexpr double kRoom = 1.02;  // or half of the last point lies outside
  const Axis x = axis(kRoom * x_high, kLeft, kWidth - kRight), y = axis(y_high, kHeight - kBottom, kTop);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  out += text(kLeft, 28, "start", chart.title) + grid(x, y);
  out += text((x.first + x.last) / 2.0, kHeight - 18, "middle", chart.x_axis);
  out += fmt::format("<g transform=\"translate(18 {}) rotate(-90)\">{}</g>\n", (y.first + y.last) / 2,
                     text(0, 0, "middle", chart.y_axis));
  if (chart.baseline) out += baseline(*chart.baseline, x, y);
  Names names;
  std::string lines;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    lines += line(chart.series[i], x, y, style_of(i, chart.series.size()), names);
  }
  return out + names.lines() + lines + names.names() + legend(chart) + "</svg>\n";
}

}  // namespace headrace::app
