"""Draws columns of a training curve against its steps as an SVG of a few kB."""
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 56, 170, 16, 44
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"]
DASHES = ["", "6 3", "2 3"]


def ticks(high):
    """0 and up to `high` or just above, in steps of 1, 2 or 5 times a power of ten."""
    step = next(s for e in range(-9, 10) for s in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if high <= 6 * s)
    count = -int(-high // step)
    return [k * step for k in range(count + 1)]


def draw_curve(curve, series, path, label):
    """`series`: key of an entry of the curve -> its name. Both axes begin at 0; `label` says what is drawn upwards."""
    x_ticks = ticks(max(c["step"] for c in curve))
    y_ticks = ticks(max(c[k] for c in curve for k in series))

    def x(step):
        return LEFT + step / x_ticks[-1] * (WIDTH - LEFT - RIGHT)

    def y(value):
        return HEIGHT - BOTTOM - value / y_ticks[-1] * (HEIGHT - TOP - BOTTOM)

    def text(at, value, anchor, more=""):
        return f'<text x="{at[0]:.0f}" y="{at[1]:.0f}" text-anchor="{anchor}"{more}>{escape(value)}</text>'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             'font-size="12" fill="none" stroke-width="2"><rect width="100%" height="100%" fill="white"/>']
    grid = "".join(f"M{x(t):.1f} {TOP}V{HEIGHT - BOTTOM}" for t in x_ticks)
    grid += "".join(f"M{LEFT} {y(t):.1f}H{WIDTH - RIGHT}" for t in y_ticks)
    parts += [f'<path d="{grid}" stroke="#ddd" stroke-width="1"/>', '<g fill="black">']
    parts += [text((x(t), HEIGHT - BOTTOM + 16), f"{t:g}", "middle") for t in x_ticks]
    parts += [text((LEFT - 6, y(t) + 4), f"{t:g}", "end") for t in y_ticks]
    parts += [text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10), "step", "middle"),
              text((0, 0), label, "middle", f' transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)"')]
    parts += [text((WIDTH - RIGHT + 38, TOP + 10 + 18 * i), name, "start") for i, name in enumerate(series.values())]
    parts.append("</g>")
    for i, key in enumerate(series):
        style = f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-dasharray="{DASHES[i % len(DASHES)]}"'
        line = "L".join(f"{x(c['step']):.1f} {y(c[key]):.1f}" for c in curve)
        parts.append(f'<path d="M{line}M{WIDTH - RIGHT + 10} {TOP + 6 + 18 * i}h22" {style}/>')
    path.write_text("\n".join(parts) + "\n</svg>\n", encoding="utf-8")
