"""lm-eval's own gsm8k_cot and ours, on the same questions and the same server: the same prompts and verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.http.conftest import says
from tests.http.live import live
from tests.http.test_more_clients import program, run
from zerokl.evals.cli import evaluate
from zerokl.evals.gsm8k import make_task
from zerokl.evals.results import load
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=30, stage="base-b", runner_config="cpu-small")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

HERE = Path(__file__).parent / "gsm8k"
TASK = """
include: {theirs}
task: cot_here
dataset_path: json
dataset_name: null
dataset_kwargs: {{data_files: {{test: {data}}}}}
generation_kwargs: {{until: ["Q:", "</s>", "<|im_end|>"], do_sample: false, max_gen_toks: 40}}
"""
SHOTS = """
import json, yaml
rows = yaml.safe_load(open({theirs!r}))["fewshot_config"]["samples"]
print(json.dumps([{{"question": row["question"], "answer": row["target"]}} for row in rows]))
"""
ANSWERS = (
    "The answer is {}. Q: no",
    " It makes {}",
    " So the answer is {}.",
    "The answer is 1{}.",
    "The answer is {}.0.",
)
"""Right, and then wrong in four ways: two without the words, another number, another text of the same number."""


def test_lm_evals_gsm8k_cot_and_ours_ask_and_judge_alike(tmp_path: Path) -> None:
    theirs = program("python").parent.parent / "lib/python3.11/site-packages/lm_eval/tasks/gsm8k/gsm8k-cot.yaml"
    if not theirs.exists():
        [theirs] = program("python").parent.parent.rglob("lm_eval/tasks/gsm8k/gsm8k-cot.yaml")
    shots = json.loads(run(program("python"), "-c", SHOTS.format(theirs=str(theirs)), folder=tmp_path).splitlines()[-1])
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shots))
    (tmp_path / "test.jsonl").write_text("".join((HERE / "test.jsonl").read_text().splitlines(keepends=True)[:10]))
    task = make_task(tmp_path, mode="cot", shots=8, questions=10)
    script = []
    for item in task.items:
        number = item.answer.rpartition("####")[2].strip()
        script.append(says(task.prompt(item), ANSWERS[item.id % len(ANSWERS)].format(number) + " " * 40))
    with live(script, engine={"context_length": 8192, "num_pages": 400}) as server:
        theirs_said = ask_lm_eval(server.url, theirs, tmp_path)
        ask_ourselves(server.url, tmp_path)
    ours = load(tmp_path / "ours.jsonl").answers
    assert [row["arguments"]["gen_args_0"]["arg_0"] for row in theirs_said] == [
        task.prompt(item) for item in task.items
    ]
    assert [row["resps"][0][0] for row in theirs_said] == [ours[item.id].text for item in task.items]
    assert [row["exact_match"] == 1 for row in theirs_said] == [ours[i.id].verdict == "right" for i in task.items]
    assert [ours[item.id].verdict for item in task.items[:5]] == ["right", "no number", "no number", "wrong", "wrong"]


def ask_lm_eval(url: str, theirs: Path, folder: Path) -> list[dict]:
    """Its log of samples under the strict rule, in the questions' order."""
    (folder / "cot.yaml").write_text(TASK.format(theirs=theirs, data=folder / "test.jsonl"))
    arguments = f"base_url={url}/v1/completions,model=toy,tokenizer_backend=remote,num_concurrent=2,max_length=8000"
    command = [program("python"), "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments]
    command += [
        "--tasks",
        "cot_here",
        "--include_path",
        str(folder),
        "--output_path",
        str(folder / "out"),
        "--log_samples",
    ]
    run(*command, folder=folder)
    [written] = (folder / "out").rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    return sorted((row for row in rows if row["filter"] == "strict-match"), key=lambda row: row["doc_id"])


def ask_ourselves(url: str, folder: Path) -> None:
    arguments = ["gsm8k", url, "--data", str(folder), "--mode", "cot", "--shots", "8", "--questions", "10"]
    arguments += ["--max-new-tokens", "40", "--out", str(folder / "ours.jsonl"), "--route", "completions"]
    result = CliRunner().invoke(evaluate, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
