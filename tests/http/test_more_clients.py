"""Clients that are too large for the tests' own environment: they run in one that `make clients` installs.

GuideLLM needs torch, so it is tried only where somebody installed it into that environment (or into one beside it).
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.live import Live, live
from zerokl.checkpoints.cache_folder import cache_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CLIENTS = cache_folder() / "clients" / "bin"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server(frontend: str) -> Iterator[Live]:
    with live() as running:
        yield running


def program(name: str) -> Path:
    found = [path for path in (CLIENTS / name, CLIENTS.parent.parent / "guidellm" / "bin" / name) if path.exists()]
    if not found:
        pytest.skip(f"{name} is not installed: make clients")
    return found[0]


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    variables = {**os.environ, **OFFLINE, "HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": "any", **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, env=variables, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def told(server: Live, folder: Path, script: str) -> Any:
    """The JSON that a script for the clients' Python prints last; `url` is the server's /v1."""
    source = f"import json\nurl = {server.url + '/v1'!r}\n{textwrap.dedent(script)}"
    return json.loads(run(program("python"), "-c", source, folder=folder).splitlines()[-1])


def chatted(server: Live, **body: Any) -> str:
    answer = server.post("/v1/chat/completions", {"messages": HI, **body}).json()
    text: str = answer["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm(server: Live, tmp_path: Path, provider: str) -> None:
    script = f"""
        import litellm
        options = dict(model="{provider}/toy", api_base=url, api_key="x", messages={HI}, max_tokens=9, seed=3)
        whole = litellm.completion(**options)
        chunks = list(litellm.completion(**options, stream=True, stream_options={{"include_usage": True}}))
        joined = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        text = litellm.text_completion(model="text-completion-openai/toy", api_base=url, api_key="x", prompt="ab",
                                       max_tokens=3, temperature=0, logprobs=2)
        print(json.dumps([whole.choices[0].message.content, joined, whole.usage.total_tokens,
                          chunks[-1].usage.total_tokens, text.choices[0].logprobs.token_logprobs]))
    """
    whole, joined, total, streamed_total, logprobs = told(server, tmp_path, script)
    assert whole == joined == chatted(server, max_tokens=9, seed=3)
    assert total == streamed_total == 29
    body = {"prompt": "ab", "max_tokens": 3, "temperature": 0, "logprobs": 2}
    assert logprobs == server.post("/v1/completions", body).json()["choices"][0]["logprobs"]["token_logprobs"]


def test_langchain(server: Live, tmp_path: Path) -> None:
    script = """
        from typing import Literal
        import pydantic
        from langchain_openai import ChatOpenAI, OpenAI
        class Weather(pydantic.BaseModel):
            city: Literal["Bern", "Rom"]
        chat = ChatOpenAI(model="toy", base_url=url, api_key="x", max_tokens=200, seed=1)
        texts = OpenAI(model="toy", base_url=url, api_key="x", max_tokens=5).generate(["a", "b"])
        cities = [chat.with_structured_output(Weather, method=how).invoke("hi").city
                  for how in ("json_schema", "function_calling")]
        print(json.dumps([chat.invoke("hi").content, "".join(part.content for part in chat.stream("hi")),
                          cities, [len(one[0].text) for one in texts.generations]]))
    """
    whole, joined, cities, lengths = told(server, tmp_path, script)
    assert whole == joined == chatted(server, max_tokens=200, seed=1)
    assert set(cities) <= {"Bern", "Rom"}
    assert lengths == [5, 5]


def test_instructor(server: Live, tmp_path: Path) -> None:
    script = f"""
        from typing import Literal
        import instructor, openai, pydantic
        class Weather(pydantic.BaseModel):
            city: Literal["Bern", "Rom"]
        client = openai.OpenAI(base_url=url, api_key="x")
        modes = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
        print(json.dumps([instructor.from_openai(client, mode=mode).chat.completions.create(
            model="toy", response_model=Weather, messages={HI}, max_tokens=300).city for mode in modes]))
    """
    assert set(told(server, tmp_path, script)) <= {"Bern", "Rom"}


TASK = """
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: data.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
GENERATED = """
task: generated
dataset_path: json
dataset_kwargs: {data_files: {test: data.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["~~"], max_gen_toks: 8}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def test_lm_eval_scores_as_our_scores_say(server: Live, tmp_path: Path) -> None:
    """Choices by likelihood and answers by text, over completions with the remote tokenizer, and chat."""
    rows = [{"question": f"The {i} sea is", "choices": [" blue", " red"]} for i in range(6)]
    for row in rows:
        body = {"prompt": row["question"], "max_tokens": 8, "temperature": 0}
        row["answer"] = server.post("/v1/completions", body).json()["choices"][0]["text"]
    rows[0]["answer"] = "another"
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tiny.yaml").write_text(TASK)
    (tmp_path / "generated.yaml").write_text(GENERATED)
    arguments = (
        f"base_url={server.url}/v1/completions,model=toy,tokenizer_backend=remote,num_concurrent=2,max_length=500"
    )
    results = lm_eval(tmp_path, "local-completions", arguments, "tiny,generated")
    right = [total_logprob(server, row, 0) > total_logprob(server, row, 1) for row in rows]
    assert results["tiny"]["acc,none"] == pytest.approx(sum(right) / len(rows), abs=1e-9)
    assert results["generated"]["exact_match,none"] == pytest.approx(5 / 6, abs=1e-9)
    arguments = f"base_url={server.url}/v1/chat/completions,model=toy,num_concurrent=2"
    results = lm_eval(tmp_path, "local-chat-completions", arguments, "generated", "--apply_chat_template")
    assert results["generated"]["exact_match,none"] == 0


def lm_eval(folder: Path, model: str, arguments: str, tasks: str, *more: str) -> Any:
    command = [program("python"), "-m", "lm_eval", "--model", model, "--model_args", arguments, "--tasks", tasks]
    run(*command, "--include_path", str(folder), "--output_path", str(folder / model), *more, folder=folder)
    [written] = (folder / model).rglob("results*.json")
    return json.loads(written.read_text())["results"]


def total_logprob(server: Live, row: Any, choice: int) -> float:
    ids = [*row["question"].encode(), *row["choices"][choice].encode()]
    params = {"max_new_tokens": 0}
    body = server.generate(
        input_ids=ids, sampling_params=params, return_logprob=True, logprob_start_len=len(row["question"].encode()) - 1
    )
    scores = body["meta_info"]["input_token_logprobs"]
    return sum(entry[0] for entry in scores[1:])


def test_guidellm(server: Live, tmp_path: Path) -> None:
    guidellm = program("guidellm")
    rows = [{"prompt": f"The {i} sea is", "output_tokens_count": 8} for i in range(20)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for form in ("/v1/chat/completions", "/v1/completions"):
        backend = f"kind=openai_http,target={server.url},model=toy,request_format={form}"
        options = ["--backend", backend, "--data", f"kind=json_file,path={tmp_path}/data.jsonl"]
        options += ["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6"]
        run(
            guidellm,
            "run",
            *options,
            "--output",
            f"kind=json,path={tmp_path}/out.json",
            "--disable-progress",
            folder=tmp_path,
        )
        [benchmark] = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
        assert benchmark["metrics"]["request_totals"]["successful"] == 6
        assert benchmark["metrics"]["request_totals"]["errored"] == 0


def test_schemathesis_finds_no_answer_that_the_document_does_not_tell_of(server: Live, tmp_path: Path) -> None:
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    options = ["--max-examples", "15", "--phases", "coverage,fuzzing", "--checks", checks, "--seed", "1"]
    run(program("schemathesis"), "run", f"{server.url}/openapi.json", *options, folder=tmp_path)
