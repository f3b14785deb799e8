"""A plot of a serving benchmark as one SVG file: the share of requests that had to wait no longer than so long."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 320, 48, 40, 28
COLOURS = ("#1f6feb", "#d9480f", "#2b8a3e")
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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(shapes)}</svg>\n'
    )


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#d0d0d0"/>'


def text(x: float, y: float, words: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(words)}</text>'
