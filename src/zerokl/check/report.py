"""The report as JSON: everything that the terminal shows, and the bits behind it. Versioned; fields are only added."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from zerokl.check.bits import from_bits, ulps
from zerokl.check.divergence import Divergence, max_abs, mean_k3, summarise
from zerokl.check.ledger import Comparison, Difference
from zerokl.check.outcome import Status
from zerokl.check.run import CaseResult, Report

SCHEMA = "zerokl.check/1"
SHOWN_DIFFERENCES = 40
"""Per answer; the counts are of all."""


def headline(report: Report) -> str:
    """The verdict in one line."""
    counted = f"{report.differing:,} of {report.values:,} values differ"
    for result in report.results:
        if result.case.looks_back and result.tally.differing:
            counted += f"; {result.tally.differing:,} of {result.tally.values:,} numbers fail {result.case.name}"
    missing = [result.case.name for result in report.results if result.status is Status.COULD_NOT_RUN]
    return f"{counted}; could not run: {', '.join(missing)}" if missing else counted


def as_json(report: Report) -> dict[str, Any]:
    texts = outputs(report)
    return {
        "schema": SCHEMA,
        "verdict": report.status.value,
        "headline": headline(report),
        "exit_code": report.exit_code,
        "url": report.url,
        "server": asdict(report.facts),
        "options": {"seed": report.seed, "size": report.sizes, "left_out": report.left_out},
        "totals": {
            "values": report.values,
            "differing": report.differing,
            "positions": report.positions,
            "requests": report.requests,
            "foreign_requests": report.foreign_requests,
            "retries": report.retries,
            "seconds": round(report.seconds, 3),
            "estimate_seconds": None if report.estimate_s is None else round(report.estimate_s, 1),
        },
        "rates": None if report.rates is None else asdict(report.rates),
        "cases": [_case(result) for result in report.results],
        "diagnoses": [asdict(diagnosis) for diagnosis in report.diagnoses],
        "divergences": [_divergence(comparison, texts) for comparison in report.divergent()],
        "token_texts": {str(token): text for token, text in report.token_texts.items()},
    }


def _case(result: CaseResult) -> dict[str, Any]:
    tally = result.tally
    return {
        "name": result.case.name,
        "title": result.case.title,
        "status": result.status.value,
        "reason": result.reason,
        "values": tally.values,
        "differing": tally.differing,
        "positions": tally.positions,
        "answers": tally.answers,
        "events": tally.events,
        "failures": tally.failures,
        "log": tally.log.describe(),
        "max_abs": max_abs(tally.comparisons),
        "k3": mean_k3(tally.comparisons),
        "seconds": round(result.seconds, 3),
    }


def outputs(report: Report) -> dict[tuple[str, int], tuple[int, ...]]:
    """Every answer's tokens, by server and number."""
    return {
        (comparison.setting.server, comparison.setting.number): comparison.answer.text_ids
        for result in report.results
        for comparison in result.tally.comparisons
    }


def _divergence(comparison: Comparison, texts: dict[tuple[str, int], tuple[int, ...]]) -> dict[str, Any]:
    divergence = summarise(comparison)
    first = divergence.differences[0].first_setting
    return {
        "ask": asdict(comparison.answer.ask),
        "first_ids": list(texts.get((first.server, first.number), ())),
        "other_ids": list(comparison.answer.text_ids),
        "rows": _rows(divergence),
        "case": divergence.case,
        "first": divergence.first,
        "other": divergence.other,
        "prompt_tokens": divergence.prompt_tokens,
        "values": divergence.values,
        "differing": divergence.differing,
        "kinds": divergence.kinds,
        "token_position": divergence.token_position,
        "positions": list(divergence.positions),
        "max_ulps": divergence.max_ulps,
        "max_abs": divergence.max_abs,
        "k3": divergence.k3,
        "differences": [_difference(item) for item in divergence.differences[:SHOWN_DIFFERENCES]],
    }


def _rows(divergence: Divergence) -> list[tuple[int, int]]:
    """(position, largest distance in ulps; -1 where only ids differ)."""
    rows: dict[int, int] = {}
    for item in divergence.differences:
        distance = ulps(item.first[0], item.other[0]) if item.kind == "logprob" else -1
        rows[item.position] = max(rows.get(item.position, -1), distance)
    return sorted(rows.items())


def _difference(item: Difference) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "position": item.position,
        "token": item.token,
        "first": _side(item, item.first),
        "other": _side(item, item.other),
        "first_phase": item.first_phase,
        "other_phase": item.other_phase,
    }


def _side(item: Difference, value: tuple[int, ...]) -> Any:
    """Ids as they are; a logprob with its bits in hex, because that is what was compared."""
    if item.kind != "logprob":
        return list(value)
    return {"logprob": from_bits(value[0]), "bits": f"{value[0]:08x}"}
