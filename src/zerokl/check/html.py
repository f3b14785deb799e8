"""The report as one self-contained page: verdict first, then the cases, what differs, and why. Made from the JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from html import escape
from importlib import resources
from typing import Any

from zerokl.check.plots import histogram, positions

SHOWN_ANSWERS = 12
SHOWN_EVIDENCE = 10
"""Lines of evidence before the rest is folded away."""
STATUSES = ("different", "could not run", "equal", "not possible")
BEFORE, AFTER = 8, 14
"""Tokens shown around the place where two answers part."""


def page(report: dict[str, Any]) -> str:
    css = (resources.files("zerokl.check") / "report.css").read_text("utf-8")
    body = [_hero(report)]
    if report["diagnoses"]:
        body.append(_diagnoses(report))
    body.append(_matrix(report))
    if report["divergences"]:
        body += [_plots(report), _answers(report)]
    body.append(_about(report))
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f'<meta name=color-scheme content="light dark"><title>{escape(report["headline"])}</title>'
        f"<style>{css}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _hero(report: dict[str, Any]) -> str:
    totals, server = report["totals"], report["server"]
    counted = f"{totals['differing']:,} of {totals['values']:,} values differ"
    name = " ".join(part for part in (server["kind"], server["version"]) if part)
    return (
        f"<header class='hero {_class(report['verdict'])}'><h1>{counted}</h1>"
        f"<p>{escape(name)} at <span class=mono>{escape(report['url'])}</span>, "
        f"{escape(server['model'] or 'model unknown')}</p>"
        f"<p class=soft>{totals['positions']:,} positions compared in {totals['requests']:,} requests and "
        f"{totals['seconds']:.0f} s. Verdict: {escape(report['verdict'])}.</p>{_counts(report)}</header>"
    )


def _counts(report: dict[str, Any]) -> str:
    """How many cases ended how, as a bar of one piece per case."""
    pieces = "".join(f"<i class={_class(status)}></i>" for status in STATUSES for case in _of(report, status))
    counted = [f"{len(_of(report, status))} {status}" for status in STATUSES if _of(report, status)]
    return f"<div class=pieces aria-hidden=true>{pieces}</div><p class=soft>Cases: {', '.join(counted)}.</p>"


def _of(report: dict[str, Any], status: str) -> list[dict[str, Any]]:
    return [case for case in report["cases"] if case["status"] == status]


def _matrix(report: dict[str, Any]) -> str:
    """What differs first, then what couldn't run; those that this server can't be asked in a list of their own."""
    ran = [case for status in STATUSES if status != "not possible" for case in _of(report, status)]
    rest = "".join(
        f"<tr><td>{escape(case['name'])}</td><td>{escape(case['title'])}</td><td>{escape(case['reason'])}</td></tr>"
        for case in _of(report, "not possible")
    )
    table = (
        f"<details><summary>Not possible here: {len(_of(report, 'not possible'))} cases</summary>"
        f"<div class=scroll><table><tr><th>case<th>what it compares<th>why not</tr>{rest}</table></div></details>"
    )
    return f"<h2>Cases</h2><div class=matrix>{''.join(map(_tile, ran))}</div>{table if rest else ''}"


def _tile(case: dict[str, Any]) -> str:
    counts = f"{case['differing']:,} of {case['values']:,} values" if case["values"] else ""
    worst = f", <span>|d| up to {_short(case['max_abs'])}</span>" if case["max_abs"] else ""
    log = f"log: {case['log']}" if case.get("log") else ""
    lines = [case["reason"] or "; ".join(case["events"][:2]), log]
    text = "".join(f"<p class=soft>{escape(line)}</p>" for line in lines if line)
    return (
        f"<div class='tile {_class(case['status'])}'><h3>{escape(case['name'])}"
        f"<span>{escape(case['status'])}</span></h3><p>{escape(case['title'])}</p>"
        f"<p class=figures>{counts}{worst}</p>{_meter(case['differing'], case['values'])}{text}</div>"
    )


def _meter(part: int, whole: int) -> str:
    """The share as a thin bar; a share that isn't nothing is never drawn as nothing."""
    if not whole:
        return ""
    width = max(2.0, 100 * part / whole) if part else 0.0
    return f"<div class=meter aria-hidden=true><i style='width:{width:.1f}%'></i></div>"


def _short(value: float) -> str:
    """0.24 rather than 2.4e-01; very small ones as a power of ten."""
    return f"{value:.2g}" if value >= 0.001 else f"{value:.0e}".replace("e-0", "e-").replace("-", "\u2011")


def _diagnoses(report: dict[str, Any]) -> str:
    cards = []
    for one in report["diagnoses"]:
        shown, folded = _sorted_evidence(one["evidence"])
        cards.append(
            f"<div class=card><h3><span class=word>{escape(one['kind'])}</span>, {escape(one['confidence'])} confidence"
            f"</h3><p>{escape(_sentence(one['summary']))}</p>{_evidence(shown)}"
            f"{_more_evidence(folded)}</div>"
        )
    return f"<h2>Diagnosis</h2>{''.join(cards)}"


def _sorted_evidence(lines: list[list[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """What is shown: the re-runs, what accuses, and that equal circumstances agree. Folded away: other zeros, and what
    is left."""
    plain = [line for line in lines if not line[1].startswith("0 of") or line[0].startswith(("re-run", "nothing"))]
    shown = plain[:SHOWN_EVIDENCE] if plain else lines[:SHOWN_EVIDENCE]
    return shown, [line for line in lines if line not in shown]


def _evidence(lines: list[list[str]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(what)}</td><td class=found>{_rate(found)}{escape(found)}</td></tr>" for what, found in lines
    )
    return f"<div class=scroll><table><tr><th>evidence<th>found</tr>{rows}</table></div>"


def _more_evidence(lines: list[list[str]]) -> str:
    return f"<details><summary>{len(lines)} more</summary>{_evidence(lines)}</details>" if lines else ""


def _rate(found: str) -> str:
    counted = re.match(r"(\d+) of (\d+) ", found)
    return _meter(int(counted[1]), int(counted[2])) if counted else ""


def _plots(report: dict[str, Any]) -> str:
    points = [tuple(row) for one in report["divergences"] for row in one["rows"]]
    grid = report["server"]["page_size"] or 0
    distances = [ulps for _, ulps in points if ulps > 0]
    sizes = ""
    if distances:
        sizes = (
            "<div class=card><h3>Sizes</h3><p class=soft>Positions by their largest distance in ulps.</p>"
            f"{histogram(distances)}</div>"
        )
    marked = f"; grid lines every {grid} tokens, the server's page" if grid > 1 else ""
    return (
        "<h2>Where and how far</h2>"
        f"<div class=card><h3>Differences by position</h3><p class=soft>Distance in ulps (a power of two each line); "
        f"ticks below the axis: only tokens, rankings or ends differ{marked}.</p>{positions(points, grid)}</div>{sizes}"
    )


def _answers(report: dict[str, Any]) -> str:
    shown = _of_every_case(report["divergences"])
    more = len(report["divergences"]) - len(shown)
    rest = f"<p class=soft>... and {more} more, all of them in the JSON report.</p>" if more else ""
    return "<h2>Answers that differ</h2>" + "".join(_answer(report, one) for one in shown) + rest


def _of_every_case(divergences: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of each case, then the second of each, until there are enough; in the order of the run."""
    turns = Counter[str]()
    ranked = []
    for place, one in enumerate(divergences):
        ranked.append((turns[one["case"]], place))
        turns[one["case"]] += 1
    return [divergences[place] for _, place in sorted(sorted(ranked)[:SHOWN_ANSWERS], key=lambda item: item[1])]


def _answer(report: dict[str, Any], one: dict[str, Any]) -> str:
    parted = one["token_position"]
    where = f"; the tokens part at position {parted}" if parted is not None else ""
    sides = ""
    if parted is not None and one["first_ids"]:
        columns = [
            f"<div><p class=soft>{escape(label)}</p>{_tokens(ids, parted, report['token_texts'])}</div>"
            for label, ids in ((one["first"], one["first_ids"]), (one["other"], one["other_ids"]))
        ]
        sides = f"<div class=sides>{''.join(columns)}</div>"
    else:
        sides = f"<p class=soft>{escape(one['first'])}<br>{escape(one['other'])}</p>"
    return (
        f"<div class=card><h3>{escape(one['case'])}: {one['differing']:,} of {one['values']:,} values</h3>"
        f"<p>First at position {one['positions'][0]} of a prompt of {one['prompt_tokens']} tokens{where}. "
        f"Up to {one['max_ulps']:,} ulps, |d| {one['max_abs']:.2e}, k3 {one['k3']:.2e}.</p>{sides}"
        f"{_values(one, report['token_texts'])}{_curl(report, one)}</div>"
    )


def _tokens(ids: list[int], parted: int, texts: dict[str, str]) -> str:
    spans = []
    for position in range(max(0, parted - BEFORE), min(len(ids), parted + AFTER)):
        text = texts.get(str(ids[position]), str(ids[position])).replace("\n", "\u23ce")
        name = " class=parted" if position == parted else ""
        spans.append(f"<span{name} title='position {position}, id {ids[position]}'>{escape(text)}</span>")
    return f"<p class=tokens>{' '.join(spans)}</p>"


def _values(one: dict[str, Any], texts: dict[str, str]) -> str:
    rows = []
    unique = [item for index, item in enumerate(one["differences"]) if item not in one["differences"][:index]]
    for item in unique[:12]:  # a chosen token's logprob stands in its top-k row, too
        what = item["kind"]
        if what == "logprob":
            text = texts.get(str(item["token"]))
            what = f"logprob of {escape(repr(text) if text is not None else str(item['token']))}"
        if item["kind"] == "end":
            what = f"end, with {item['token']} as a stop"
        shown = _end if item["kind"] == "end" else _value
        sides = "".join(f"<td class=mono>{escape(shown(item[side]))}</td>" for side in ("first", "other"))
        phases = f"{item['first_phase']} / {item['other_phase']}"
        rows.append(f"<tr><td class=number>{item['position']}</td><td>{what}</td>{sides}<td>{phases}</td></tr>")
    return (
        "<details><summary>Values</summary><div class=scroll><table>"
        "<tr><th class=number>position<th>what<th>first<th>other<th>phases</tr>"
        f"{''.join(rows)}</table></div></details>"
    )


def _value(side: Any) -> str:
    return f"{side['logprob']:.9g} ({side['bits']})" if isinstance(side, dict) else " ".join(map(str, side))


def _end(side: list[int]) -> str:
    return "ends here" if side[0] else "goes on"


def _curl(report: dict[str, Any], one: dict[str, Any]) -> str:
    """The request, alone; the circumstances are in the words above it."""
    ask = one["ask"]
    kind = report["server"]["kind"]
    if kind == "huggingface":
        return _snippet(ask)
    if kind in ("zerokl", "sglang"):
        path, body = "/generate", _native_body(ask)
    elif kind == "llama.cpp":
        path, body = "/completion", _body(ask, tokens="n_predict", top="n_probs")
    else:
        body = {"model": report["server"]["model"], **_body(ask, tokens="max_tokens", top="logprobs")}
        if ask["score_from"] is not None:
            body |= {"prompt_logprobs": ask["top"], "max_tokens": max(1, ask["new_tokens"])}
        path = "/v1/completions"
    command = f"curl -s {report['url']}{path} -d '{json.dumps(body)}'"
    return f"<details><summary>Reproduce</summary><pre>{escape(command)}</pre></details>"


def _snippet(ask: dict[str, Any]) -> str:
    """There is no server: the same in Python."""
    lines = [f"ids = torch.tensor([{json.dumps(ask['ids'])}])", "logits = model(ids).logits.float()"]
    if ask["new_tokens"]:
        lines.append(f"output = model.generate(ids, max_new_tokens={ask['new_tokens']}, do_sample=False)")
    return f"<details><summary>Reproduce</summary><pre>{escape(chr(10).join(lines))}</pre></details>"


def _body(ask: dict[str, Any], *, tokens: str, top: str) -> dict[str, Any]:
    body = {"prompt": ask["ids"], tokens: ask["new_tokens"], top: ask["top"], "temperature": ask["temperature"]}
    return body if ask["seed"] is None else {**body, "seed": ask["seed"]}


def _native_body(ask: dict[str, Any]) -> dict[str, Any]:
    sampling = {"temperature": ask["temperature"], "max_new_tokens": ask["new_tokens"], "ignore_eos": True}
    if ask["seed"] is not None:
        sampling["sampling_seed"] = ask["seed"]
    if ask.get("stop") is not None:
        sampling |= {"stop_token_ids": [ask["stop"]], "ignore_eos": False}
    return {
        "input_ids": ask["ids"],
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": -1 if ask["score_from"] is None else ask["score_from"],
        "top_logprobs_num": ask["top"],
    }


def _about(report: dict[str, Any]) -> str:
    options, totals = report["options"], report["totals"]
    return (
        f"<h2>About this run</h2><p class=soft>Seed {options['seed']}, size {escape(options['size'])}; "
        f"{totals['retries']} retries, {totals['foreign_requests']} requests of others. Values are token ids, logprobs "
        "compared by the bits of their float32, and the order of top-k rows. Every case had to show that its event "
        "happened; one that could not show it is no pass.</p>"
    )


def _class(status: str) -> str:
    return status.replace(" ", "-")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
