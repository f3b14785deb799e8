"""Two small plots as SVG, without a library: where values differ, and by how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, BOTTOM = 900, 260, 46, 34
MOST_POINTS = 4000
SUPERSCRIPT = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")


def positions(points: Sequence[tuple[int, ...]], grid: int) -> str:
    """(position, ulps) as dots over a log2 axis; ulps -1 as ticks under it."""
    last = max(position for position, _ in points) + 1
    top = max(4, max(ulps.bit_length() for _, ulps in points if ulps >= 0) if any(u >= 0 for _, u in points) else 4)
    shapes = [_line(LEFT, HEIGHT - BOTTOM, WIDTH, HEIGHT - BOTTOM)]

    def x(position: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * position / last

    def y(power: float) -> float:
        return (HEIGHT - BOTTOM) - (HEIGHT - BOTTOM - 12) * power / top

    if grid > 1 and last / grid <= 64:
        shapes += [_line(x(edge), 12, x(edge), HEIGHT - BOTTOM) for edge in range(0, last, grid)]
    for power in range(0, top + 1, max(1, top // 6)):
        shapes.append(_text(LEFT - 6, y(power) + 4, _power(power), "end"))
    for position in range(0, last, _step(last)):
        shapes.append(_text(x(position), HEIGHT - 6, str(position), "middle"))
    for position, ulps in points[:MOST_POINTS]:
        if ulps < 0:
            shapes.append(
                f'<line class="flip" x1="{x(position):.1f}" x2="{x(position):.1f}" y1="{HEIGHT - BOTTOM + 2}" '
                f'y2="{HEIGHT - BOTTOM + 12}"/>'
            )
        else:
            height = y(max(0, ulps.bit_length() - 1))
            shapes.append(f'<circle class="dot" cx="{x(position):.1f}" cy="{height:.1f}" r="3.2"/>')
    return _svg(shapes, "Distance in ulps by absolute position")


def histogram(distances: Sequence[int]) -> str:
    """Counts by the power of two below each distance; there is at least one."""
    counts = Counter(distance.bit_length() - 1 for distance in distances)
    powers = range(max(counts) + 1)
    most = max(counts.values())
    slot = (WIDTH - LEFT) / len(powers)
    shapes = [_line(LEFT, HEIGHT - BOTTOM, WIDTH, HEIGHT - BOTTOM)]
    for power in powers:
        height = (HEIGHT - BOTTOM - 26) * counts[power] / most
        left = LEFT + slot * power
        if counts[power]:
            shapes.append(
                f'<rect class="bar" x="{left + 2:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" '
                f'width="{max(2.0, slot - 4):.1f}" height="{height:.1f}" rx="2"/>'
            )
            shapes.append(_text(left + slot / 2, HEIGHT - BOTTOM - height - 5, str(counts[power]), "middle"))
        if power % max(1, len(powers) // 14) == 0:
            shapes.append(_text(left + slot / 2, HEIGHT - 14, _power(power), "middle"))
    return _svg(shapes, "Histogram of distances in ulps")


def _power(power: int) -> str:
    """2 to a power, as people write it."""
    return "2" + str(power).translate(SUPERSCRIPT)


def _step(last: int) -> int:
    """A round distance between labels, about eight of them."""
    step = 1
    while last / step > 8:
        step *= 2 if last / step > 16 or str(step)[0] != "2" else 5
    return step


def _svg(shapes: Sequence[str], label: str) -> str:
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(shapes)}</svg>'
    return f"<div class=scroll>{drawing}</div>"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="axis" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
