#!/usr/bin/env python3
"""Draws the curve in a demo model's training.json: loss_curve.svg beside it.

  python3 tools/demo_models/loss_curve.py demo_models/fairy-hybrid
"""
import argparse
import json
import math
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 760, 320, 50, 12, 440, 260
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22")
NAMES = dict(train_loss="training loss, nats per token", held_out_bpb="held out, bits per byte",
             held_out_bpb_block_1="held out, bits per byte, block 1",
             held_out_bpb_block="held out, bits per byte, whole blocks")


def ticks(low, high):
    """Four to ten round numbers of [low, high]."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 8)
    return [round(i * step, 10) for i in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def text(x, y, words, anchor="start"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'


def draw_curve(curve, series, path, label=""):
    """Columns of a training curve against its steps, from 0 up: {column: its name in the picture}."""
    last = curve[-1]["step"]
    top = 1.05 * max(point[key] for point in curve for key in series)
    x = lambda step: LEFT + PLOT_WIDTH * step / last
    y = lambda value: TOP + PLOT_HEIGHT * (1 - value / top)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for value in ticks(0, top):
        out += [f'<path d="M{LEFT} {y(value):.1f}h{PLOT_WIDTH}" stroke="#ddd"/>', text(LEFT - 6, y(value) + 4, f"{value:g}", "end")]
    for step in ticks(0, last):
        out += [f'<path d="M{x(step):.1f} {TOP}v{PLOT_HEIGHT}" stroke="#ddd"/>',
                text(x(step), TOP + PLOT_HEIGHT + 16, f"{step:g}", "middle")]
    out += [text(LEFT + PLOT_WIDTH / 2, HEIGHT - 10, "step", "middle"), text(LEFT + PLOT_WIDTH + 14, HEIGHT - 10, label)]
    for i, (key, name) in enumerate(series.items()):
        colour, row = COLOURS[i % len(COLOURS)], TOP + 14 + 18 * i
        points = " ".join(f"{x(point['step']):.1f},{y(point[key]):.1f}" for point in curve)
        out += [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
                f'<path d="M{LEFT + PLOT_WIDTH + 14} {row - 4}h20" stroke="{colour}" stroke-width="2"/>',
                text(LEFT + PLOT_WIDTH + 40, row, name)]
    path.write_text("\n".join(out) + "\n</svg>\n")


def flat(point):
    """A point whose columns of columns are columns."""
    columns = {}
    for key, value in point.items():
        name = key.replace("_", " ")
        columns |= {f"{name} {inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
    return columns


def draw_training(model):
    """loss_curve.svg of a model's training.json."""
    curve = [flat(point) for point in json.loads((model / "training.json").read_text())["curve"]]
    series = {key: NAMES.get(key, key) for key in curve[0] if key != "step"}
    label = "" if series.keys() <= NAMES.keys() else "shares of answers that are exact; loss in nats"
    draw_curve(curve, series, model / "loss_curve.svg", label)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", type=Path, nargs="+")
    for folder in ap.parse_args().model:
        draw_training(folder)
