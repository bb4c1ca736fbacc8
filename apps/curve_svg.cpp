#include "curve_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace headrace::app {
namespace {

constexpr int kWidth = 720, kHeight = 420, kLeft = 70, kRight = 130, kTop = 50, kBottom = 60;
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"};

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
  double low, high, step;
  int first, last;  // pixels of low and high
  double pixel(double value) const { return first + (value - low) / (high - low) * (last - first); }
};

Axis axis(double low, double high, int first, int last) {
  const double step = tick_step(std::max(high - low, 1e-6));
  return {std::floor(low / step) * step, std::ceil(high / step) * step, step, first, last};
}

std::string text(double x, double y, std::string_view anchor, std::string_view value) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(value));
}

std::string grid(const Axis& x, const Axis& y) {
  std::string out = "<g stroke=\"#ddd\">\n";
  std::string labels;
  for (int i = 0; x.low + i * x.step <= x.high + x.step / 2; ++i) {
    const double value = x.low + i * x.step, at = x.pixel(value);
    out += fmt::format("<path d=\"M{:.1f} {}V{}\"/>\n", at, y.first, y.last);
    labels += text(at, y.first + 18, "middle", fmt::format("{:g}", value));
  }
  for (int i = 0; y.low + i * y.step <= y.high + y.step / 2; ++i) {
    const double value = y.low + i * y.step, at = y.pixel(value);
    out += fmt::format("<path d=\"M{} {:.1f}H{}\"/>\n", x.first, at, x.last);
    labels += text(x.first - 8, at + 4, "end", fmt::format("{:g}", value));
  }
  return out + "</g>\n" + labels;
}

std::string line(const Series& series, const Axis& x, const Axis& y, std::string_view colour) {
  std::string path, dots;
  for (const Series::Point& p : series.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x.pixel(p.x), y.pixel(p.y));
    dots += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}: {:.2f}, {:.1f}</title></circle>\n",
        x.pixel(p.x), y.pixel(p.y), colour, escaped(p.label), p.x, p.y);
  }
  return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n{}", path, colour, dots);
}

}  // namespace

std::string curve_svg(const Chart& chart) {
  double x_high = 0, y_low = HUGE_VAL, y_high = -HUGE_VAL;
  for (const Series& series : chart.series) {
    for (const Series::Point& p : series.points) {
      x_high = std::max(x_high, p.x);
      y_low = std::min(y_low, p.y);
      y_high = std::max(y_high, p.y);
    }
  }
  if (y_low > y_high) x_high = 1, y_low = 1, y_high = 100;  // no point
  const Axis x = axis(0, x_high, kLeft, kWidth - kRight), y = axis(y_low - 1, y_high, kHeight - kBottom, kTop);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  out += text(kLeft, 28, "start", chart.title) + grid(x, y);
  out += text((x.first + x.last) / 2.0, kHeight - 18, "middle", chart.x_axis);
  out += fmt::format("<g transform=\"translate(18 {}) rotate(-90)\">{}</g>\n", (y.first + y.last) / 2,
                     text(0, 0, "middle", chart.y_axis));
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const std::string_view colour = kColours[i % kColours.size()];
    out += line(chart.series[i], x, y, colour);
    const int legend = kTop + 10 + 22 * static_cast<int>(i);
    out +=
        fmt::format("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{}\"/>\n", x.last + 16, legend, colour);
    out += text(x.last + 36, legend + 6, "start", chart.series[i].name);
  }
  return out + "</svg>\n";
}

}  // namespace headrace::app
