"""What an evaluation found: words for the terminal, JSON, and a page with the intervals drawn."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from html import escape
from typing import Any

from zerokl.evals.compare import Comparison
from zerokl.evals.results import VERDICTS, Results
from zerokl.evals.statistics import Gate, interval

POWER = 0.95
SHOWN = 5
WIDTH, ROW = 560, 44


def summary(results: Results) -> dict[str, Any]:
    """Counts, accuracy and its exact 95 % interval (for another draw of questions; a rerun has no noise)."""
    n, counts = len(results.answers), results.counts()
    low, high = interval(counts["right"], n) if n else (0.0, 1.0)
    return {
        **results.head.as_json(),
        "n": n,
        **{verdict.replace(" ", "_"): counts[verdict] for verdict in VERDICTS},
        "accuracy": counts["right"] / n if n else None,
        "interval": [low, high],
        "output_tokens": sum(len(one.ids or one.logprobs or ()) for one in results.answers.values()),
        "cached_tokens": sum(one.cached_tokens or 0 for one in results.answers.values()),
    }


def words(content: dict[str, Any]) -> str:
    low, high = content["interval"]
    counts = ", ".join(f"{content[verdict.replace(' ', '_')]} {verdict}" for verdict in VERDICTS)
    settings = content["settings"]
    mode = f", mode {settings['mode']}" if "mode" in settings else ""
    return (
        f"{content['task']}: {content['accuracy']:.4f} right, 95 % interval {low:.4f} to {high:.4f} "
        f"({content['n']} questions, {settings.get('shots', 0)} shots{mode}): {counts}"
    )


def gate_content(gate: Gate, right: int | None, expected: float | None) -> dict[str, Any]:
    """What the gate can and can't see, beside whether it passed."""
    return {
        "threshold": float(gate.threshold),
        "least_right": gate.least,
        "passed": None if right is None else gate.passes(right),
        "expected": expected,
        "false_alarm": None if expected is None else gate.fails_at(expected),
        "caught_half": gate.caught(0.5),
        "caught": gate.caught(POWER),
        "power": POWER,
    }


def gate_words(content: dict[str, Any], n: int) -> str:
    passed = {None: "", True: "passed; ", False: "FAILED; "}[content["passed"]]
    alarm = ""
    if content["expected"] is not None:
        alarm = f" A model of {content['expected']:g} fails it by chance with probability {content['false_alarm']:.2g}."
    return (
        f"gate {content['threshold']:g}: {passed}at least {content['least_right']} of {n}. It catches a drop to "
        f"{content['caught']:.3f} with probability {content['power']:g}, "
        f"to {content['caught_half']:.3f} half the time.{alarm}"
    )


def make_gate(n: int, threshold: str) -> Gate:
    """The threshold as it was written: 0.8 is 4/5, not the nearest float64."""
    return Gate(n, Fraction(threshold))


def comparison_content(found: Comparison) -> dict[str, Any]:
    logprobs = found.logprobs
    return {
        "pairs": found.pairs,
        "alone": found.alone,
        "differing": [
            {"id": one.id, "what": one.what, "first": one.first, "other": one.other} for one in found.differing
        ],
        "lost": found.mcnemar.lost,
        "won": found.mcnemar.won,
        "p_worse": found.mcnemar.p_worse,
        "p_two_sided": found.mcnemar.p_two_sided,
        "logprob_sums": None
        if logprobs is None
        else {"n": logprobs.n, "mean": logprobs.mean, "standard_error": logprobs.error, "t": logprobs.t},
    }


def comparison_words(content: dict[str, Any]) -> str:
    lines = [
        f"{len(content['differing'])} of {content['pairs']} outputs differ (text, ending, tokens, logprobs by bits)"
    ]
    if content["alone"]:
        lines.append(f"{content['alone']} questions are in one file only")
    for one in content["differing"][:SHOWN]:
        lines.append(f"  question {one['id']}: {one['what']}: {one['first']} / {one['other']}")
    lines.append(
        f"right in the first only {content['lost']}, in the second only {content['won']}: "
        f"exact McNemar p = {content['p_worse']:.3g} for worse, {content['p_two_sided']:.3g} two-sided"
    )
    if sums := content["logprob_sums"]:
        lines.append(
            f"logprob sums, second minus first: mean {sums['mean']:+.4g}, standard error {sums['standard_error']:.2g}, "
            f"t = {sums['t']:+.2f} ({sums['n']} answers)"
        )
    return "\n".join(lines)


STYLE = """
:root{color-scheme:light dark;--ink:#1c1c1c;--soft:#6a6a6a;--paper:#fff;--mark:#2357c5}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--soft:#9a9a9a;--paper:#161616;--mark:#7aa5ff}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;
margin:2rem auto;padding:0 1rem}
.soft{color:var(--soft)} td,th{padding:.2rem .8rem .2rem 0;text-align:left} .number{text-align:right}
svg{max-width:100%;height:auto} text{fill:var(--ink);font-size:12px} pre{white-space:pre-wrap}
"""


def page(named: Sequence[tuple[str, dict[str, Any]]], comparison: str = "", threshold: float | None = None) -> str:
    """One self-contained page: an interval for each file of results, a row each; then the counts."""
    head = "".join(f"<th class=number>{escape(verdict)}" for verdict in VERDICTS)
    rows = "".join(
        f"<tr><td>{escape(name)}<td>{escape(one['server']['kind'])} {escape(one['server']['model'])}"
        + "".join(f"<td class=number>{one[verdict.replace(' ', '_')]}" for verdict in VERDICTS)
        for name, one in named
    )
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>zerokl eval</title><style>{STYLE}</style>"
        f"</head><body><h1>{escape(named[0][1]['task'])}</h1>{_plot(named, threshold)}"
        "<p class=soft>Bars: exact 95 % intervals (Clopper and Pearson) for another draw of questions. On the same "
        "questions a reproducible server has no noise: compare runs pair by pair.</p>"
        f"<table><tr><th>file<th>server{head}</tr>{rows}</table>"
        + (f"<h2>Compared</h2><pre>{escape(comparison)}</pre>" if comparison else "")
        + "</body></html>\n"
    )


def _plot(named: Sequence[tuple[str, dict[str, Any]]], threshold: float | None) -> str:
    height = ROW * len(named) + 30
    parts = [f"<svg viewBox='0 0 {WIDTH + 40} {height}' role=img aria-label='accuracies with intervals'>"]
    for tick in range(0, 101, 20):
        x = _x(tick / 100)
        parts.append(f"<line x1={x:.1f} x2={x:.1f} y1=8 y2={height - 22} stroke='var(--soft)' stroke-opacity=.3 />")
        parts.append(f"<text x={x:.1f} y={height - 6} text-anchor=middle>{tick} %</text>")
    for number, (name, one) in enumerate(named):
        y = ROW * number + 32
        low, high = map(_x, one["interval"])
        parts.append(f"<text x=20 y={y - 12}>{escape(name)}: {one['accuracy']:.4f}</text>")
        parts.append(f"<line x1={low:.1f} x2={high:.1f} y1={y} y2={y} stroke='var(--mark)' stroke-width=4 />")
        parts.append(f"<circle cx={_x(one['accuracy']):.1f} cy={y} r=5 fill='var(--mark)' />")
    if threshold is not None:
        x = _x(threshold)
        parts.append(f"<line x1={x:.1f} x2={x:.1f} y1=8 y2={height - 22} stroke='var(--ink)' stroke-dasharray=4 />")
    return "".join(parts) + "</svg>"


def _x(share: float) -> float:
    return 20 + WIDTH * share
