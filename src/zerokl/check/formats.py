"""The report for machines and for reviews: JUnit for CI, Markdown for pull requests. Both are made from the JSON."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

FAILURES = {"different": "failure", "could not run": "error", "not possible": "skipped"}


def junit(report: dict[str, Any]) -> bytes:
    """One test case per case: different is a failure, could not run an error, not possible skipped."""
    cases = report["cases"]
    suite = ElementTree.Element(
        "testsuite",
        name="zerokl check",
        tests=str(len(cases)),
        failures=str(sum(case["status"] == "different" for case in cases)),
        errors=str(sum(case["status"] == "could not run" for case in cases)),
        skipped=str(sum(case["status"] == "not possible" for case in cases)),
        time=str(report["totals"]["seconds"]),
    )
    for case in cases:
        element = ElementTree.SubElement(
            suite, "testcase", classname="zerokl.check", name=case["name"], time=str(case["seconds"])
        )
        if case["status"] in FAILURES:
            message = case["reason"]
            if case["status"] == "different":
                message = "; ".join(filter(None, [f"{case['differing']} of {case['values']} values differ", message]))
            ElementTree.SubElement(element, FAILURES[case["status"]], message=message)
    ElementTree.indent(suite)
    text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def markdown(report: dict[str, Any]) -> str:
    """Verdict, table, diagnosis, and the first answers that differ."""
    totals, server = report["totals"], report["server"]
    lines = [
        f"# {report['headline']}",
        "",
        f"{server['kind']} {server['version']}, {server['model'] or 'model unknown'}; "
        f"{totals['positions']:,} positions compared in {totals['requests']:,} requests and {totals['seconds']:.0f} s; "
        f"seed {report['options']['seed']}.",
        "",
        "| case | what is compared | values | differ | max \\|d\\| | k3 | verdict |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for case in report["cases"]:
        verdict = case["status"] if case["status"] == "equal" else f"**{case['status']}**"
        lines.append(
            f"| {case['name']} | {case['title']} | {case['values']:,} | {case['differing']:,} "
            f"| {_number(case['max_abs'])} | {_number(case['k3'])} | {verdict} |"
        )
    reasons = [f"- {case['name']}: {case['reason']}" for case in report["cases"] if case["reason"]]
    lines += ["", "## Reasons", "", *reasons] if reasons else []
    for diagnosis in report["diagnoses"]:
        lines += ["", f"## Diagnosis: {diagnosis['kind']} ({diagnosis['confidence']} confidence)", ""]
        summary = diagnosis["summary"]
        lines += [f"{summary[0].upper()}{summary[1:]}.", "", "| evidence | found |", "|---|---|"]
        lines += [f"| {_cell(what)} | {_cell(found)} |" for what, found in diagnosis["evidence"]]
    if report["divergences"]:
        lines += ["", "## First differences", ""]
        lines += [_divergence(one) for one in report["divergences"][:8]]
    return "\n".join(lines) + "\n"


def _divergence(one: dict[str, Any]) -> str:
    parted = "" if one["token_position"] is None else f"; tokens part at {one['token_position']}"
    return (
        f"- **{one['case']}**: {one['differing']} of {one['values']} values, first at position "
        f"{one['positions'][0]}{parted}, max {one['max_ulps']:,} ulps, |d| {one['max_abs']:.1e}  \n"
        f"  {one['first']} / {one['other']}"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"
