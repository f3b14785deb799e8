"""Plots of benchmarks, each one SVG file.

cumulative   the share of requests that had to wait no longer than so long
bars         how many times faster than peers, test by test
roofline     operations under the machine's ceilings, over how much they compute per byte
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 320, 48, 40, 28
COLOURS = ("#1f6feb", "#d9480f", "#2b8a3e", "#9c36b5", "#0b7285", "#846358", "#5c6370")
FLOOR_MS = 0.1


def cumulative(curves: Mapping[str, Sequence[float]], title: str) -> str:
    """Curves by name, in milliseconds, over a logarithmic axis."""
    drawn = {name: sorted(max(FLOOR_MS, value) for value in values) for name, values in curves.items() if values}
    lowest = math.floor(math.log10(min((values[0] for values in drawn.values()), default=1.0)))
    highest = max(lowest + 1, math.ceil(math.log10(max((values[-1] for values in drawn.values()), default=10.0))))

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 12) * (math.log10(value) - lowest) / (highest - lowest)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share

    shapes = [text(WIDTH / 2, 16, title, "middle")]
    for power in range(lowest, highest + 1):
        shapes.append(line(x(10.0**power), y(0), x(10.0**power), y(1)))
        shapes.append(text(x(10.0**power), HEIGHT - BOTTOM + 16, f"{10.0**power:g} ms", "middle"))
    for share in (0, 0.5, 0.9, 1):
        shapes += [line(LEFT, y(share), WIDTH - 12, y(share)), text(LEFT - 6, y(share) + 4, f"{share:.0%}", "end")]
    for place, (name, values) in enumerate(drawn.items()):
        colour = COLOURS[place % len(COLOURS)]
        step = max(1, len(values) // 500)
        points = [f"{x(values[i]):.1f},{y((i + 1) / len(values)):.1f}" for i in [*range(0, len(values), step), -1]]
        points[-1] = f"{x(values[-1]):.1f},{y(1):.1f}"
        shapes.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(points)}"/>')
        shapes.append(text(LEFT + 10, TOP + 16 + 16 * place, name, "start", colour))
    return drawing(shapes)


def bars(ratios: Mapping[str, Mapping[str, float]], title: str) -> str:
    """Test -> peer -> our speed over the peer's."""
    highest = max(1.0, *(ratio for peers in ratios.values() for ratio in peers.values()))
    names = list(dict.fromkeys(name for peers in ratios.values() for name in peers))
    slot = (WIDTH - LEFT - 12) / len(ratios)

    def y(ratio: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP - 24) * ratio / highest

    shapes = [text(WIDTH / 2, 16, title, "middle"), line(LEFT, y(1), WIDTH - 12, y(1), "#333")]
    for place, (test, peers) in enumerate(ratios.items()):
        middle, width = LEFT + slot * (place + 0.5), 0.8 * slot / len(names)
        shapes.append(text(middle, HEIGHT - BOTTOM + 16, test, "middle"))
        for name, ratio in peers.items():
            x = middle + width * (names.index(name) - len(names) / 2)
            shapes += [box(x, y(ratio), width - 2, y(0) - y(ratio), COLOURS[names.index(name) % len(COLOURS)])]
            shapes.append(text(x + width / 2 - 1, y(ratio) - 4, f"{ratio:.2f}x", "middle"))
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        shapes.append(text(LEFT + 130 * place, TOP + 10, f"against {name}", "start", colour))
    return drawing(shapes)


def roofline(points: Sequence[tuple[str, float, float]], read_gb_per_s: float, gflop_per_s: float) -> str:
    """(operation, floating-point operations per byte, GFLOP/s) of each point."""
    lowest, highest = -1, math.ceil(math.log10(max(100.0, *(intensity for _, intensity, _ in points))))
    top = math.ceil(math.log10(gflop_per_s))

    def x(intensity: float) -> float:
        return LEFT + (WIDTH - LEFT - 12) * (math.log10(intensity) - lowest) / (highest - lowest)

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * max(0.0, math.log10(rate)) / top

    ridge = gflop_per_s / read_gb_per_s
    title = f"GFLOP/s over FLOP per byte, under {read_gb_per_s:.1f} GB/s and {gflop_per_s:.0f} GFLOP/s"
    shapes = [text(WIDTH / 2, 16, title, "middle")]
    for power in range(lowest, highest + 1):
        shapes.append(line(x(10.0**power), y(1), x(10.0**power), TOP))
        shapes.append(text(x(10.0**power), HEIGHT - BOTTOM + 16, f"{10.0**power:g}", "middle"))
    for power in range(top + 1):
        shapes += [line(LEFT, y(10.0**power), WIDTH - 12, y(10.0**power))]
        shapes.append(text(LEFT - 6, y(10.0**power) + 4, f"{10.0**power:g}", "end"))
    start = max(10.0**lowest, 1 / read_gb_per_s)
    shapes.append(line(x(start), y(start * read_gb_per_s), x(ridge), y(gflop_per_s), "#333"))
    shapes.append(line(x(ridge), y(gflop_per_s), WIDTH - 12, y(gflop_per_s), "#333"))
    names = list(dict.fromkeys(name for name, _, _ in points))
    for name, intensity, rate in points:
        colour = COLOURS[names.index(name) % len(COLOURS)]
        shapes.append(f'<circle cx="{x(intensity):.1f}" cy="{y(rate):.1f}" r="4" fill="{colour}"/>')
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        shapes.append(text(WIDTH - 20, HEIGHT - BOTTOM - 12 - 16 * (len(names) - 1 - place), name, "end", colour))
    return drawing(shapes)


def drawing(shapes: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(shapes)}</svg>\n'
    )


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "#d0d0d0") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def text(x: float, y: float, words: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(words)}</text>'
