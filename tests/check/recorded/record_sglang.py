"""What SGLang's own code makes of our requests and of a scheduler's output, without a GPU: the file beside this one.

    pip download --no-deps sglang==0.5.23 && unzip -d FOLDER sglang-*.whl
    python -m tests.check.recorded.record_sglang FOLDER

Nothing of it is copied. Its request schema is imported; of its tokenizer manager, which can't be without the whole
server, the methods that write an answer are lifted out of the source and run on a scheduler's output, written by hand.
"""

from __future__ import annotations

import ast
import asyncio
import copy
import importlib.util
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from zerokl.check.answers import Ask
from zerokl.check.targets.native import generate_body, stream_body

ASKS = {
    "greedy": Ask((5, 6, 7), 2, top=2),
    "scored": Ask((5, 6, 7), 0, score_from=0, top=2),
    "prefill": Ask((5, 6, 7), 0, logprobs=False),
    "sampled": Ask((5, 6, 7), 2, top=2, temperature=0.8, top_p=0.95, seed=11),
    "stopping": Ask((5, 6, 7), 2, top=2, stop=9),
}
METHODS = (
    *("_handle_batch_output", "convert_logprob_style", "add_logprob_to_meta_info"),
    *("detokenize_logprob_tokens", "detokenize_top_logprobs_tokens", "_get_scheduler_first_token_time"),
)
BESIDE = ("_INCREMENTAL_STREAMING_META_INFO_KEYS", "_slice_streaming_output_meta_info")
LISTS = (
    *("output_ids", "text_chunks", "input_token_logprobs", "output_token_logprobs", "input_top_logprobs"),
    *("output_top_logprobs", "input_token_logprobs_val", "input_token_logprobs_idx", "output_token_logprobs_val"),
    *("output_token_logprobs_idx", "input_top_logprobs_val", "input_top_logprobs_idx", "output_top_logprobs_val"),
    *("output_top_logprobs_idx", "out_list"),
)


def main(folder: Path) -> None:
    version = next(path.stem.split("-")[1] for path in folder.glob("sglang-*.dist-info"))
    recorded = {
        "server": f"sglang {version}",
        "requests": requests(folder),
        "answers": {name: answers(folder, ask) for name, ask in ASKS.items()},
        "answers in parts": {name: answers(folder, ASKS[name], in_parts=True) for name in ("greedy", "sampled")},
    }
    path = Path(__file__).with_name(f"sglang-{version}.json")
    path.write_bytes(orjson.dumps(recorded, option=orjson.OPT_INDENT_2) + b"\n")
    sys.stdout.write(f"{path}\n")


def requests(folder: Path) -> dict[str, Any]:
    """The schema's word on each body, whole and streamed, and what it read."""
    spec = importlib.util.spec_from_file_location("api_types", folder / "sglang/api/v1/api_types.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["api_types"] = module
    spec.loader.exec_module(module)
    bodies = {f"{name}, whole": generate_body([ask]) for name, ask in ASKS.items()}
    bodies |= {f"{name}, streamed": stream_body(ask) for name, ask in ASKS.items() if ask.new_tokens}
    bodies["all at once"] = generate_body(list(ASKS.values()))
    return {
        name: {"body": body, "read": module.GenerateRequest.from_json_value(body).to_json_value()}
        for name, body in bodies.items()
    }


def answers(folder: Path, ask: Ask, *, in_parts: bool = False) -> list[Any]:
    """The frames of a stream of two steps; the last one is the whole answer, or its part with
    --incremental-streaming-output."""
    manager, out = lifted(folder), []
    manager.incremental_streaming_output = in_parts
    lists = {name: [] for name in LISTS}
    state = SimpleNamespace(**copy.deepcopy(lists), obj=_request(ask), event=asyncio.Event(), finished=False)
    state.last_output_offset, state.prompt_token_ids, state.customized_info_accumulated = 0, None, {}
    state.append_text, state.get_text = state.text_chunks.append, lambda: "".join(state.text_chunks)
    state.time_stats = SimpleNamespace(
        first_token_time=1.0, set_finished_time=lambda **_: None, get_e2e_latency=lambda: 0.25,
        trace_ctx=SimpleNamespace(tracing_enable=False),
    )  # fmt: skip
    manager.rid_to_state = {"r": state}
    for step in range(max(1, ask.new_tokens)):
        asyncio.run(manager._handle_batch_output(_scheduled(ask, step)))
        out.append(orjson.loads(orjson.dumps(state.out_list[-1])))
    return out


def lifted(folder: Path) -> Any:
    """A tokenizer manager that has nothing but the methods which write answers."""
    source = (folder / "sglang/srt/managers/tokenizer_manager.py").read_text()
    tree = ast.parse(source)
    (manager,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TokenizerManager")
    manager.bases, manager.decorator_list = [], []
    manager.body = [node for node in manager.body if getattr(node, "name", "") in METHODS]
    assert len(manager.body) == len(METHODS), "the methods have other names in this version"
    beside = [node for node in tree.body if _name(node) in BESIDE]
    future = ast.parse("from __future__ import annotations").body
    code = compile(ast.Module([*future, *beside, manager], []), "tokenizer_manager.py", "exec")
    names: dict[str, Any] = defaultdict(lambda: type("Other", (), {}))
    scope: dict[str, Any] = {
        "BatchStrOutput": SimpleNamespace, "BatchTokenIDOutput": names["a"], "BatchEmbeddingOutput": names["b"],
        "GenerateReqInput": names["c"], "unwrap_from_pickle": lambda value: value, "asyncio": asyncio,
        "get_serving": lambda: SimpleNamespace(batch_notify_size=1), "real_time": lambda: 0.0,
        "get_spec": lambda: SimpleNamespace(speculative_algorithm=None),
        "try_build_beam_search_out_dict": lambda *_: None,
    }  # fmt: skip
    exec(code, scope)
    lifted = scope["TokenizerManager"]()
    lifted.enable_metrics, lifted.skip_tokenizer_init, lifted.incremental_streaming_output = False, False, False
    lifted.dump_requests_folder, lifted.crash_dump_folder = "", ""
    lifted.config_value, lifted._release_lora_once = (lambda _: "default"), (lambda _: None)
    return lifted


def _name(node: ast.stmt) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node
    return getattr(target, "id", getattr(target, "name", ""))


def _request(ask: Ask) -> Any:
    return SimpleNamespace(
        return_logprob=ask.logprobs, top_logprobs_num=ask.top if ask.logprobs else 0, token_ids_logprob=None,
        return_text_in_logprobs=False, return_flat_raw_top_logprobs=False, return_flat_raw_output_top_logprobs=False,
        return_sampling_mask=False, stream=True, log_metrics=False,
    )  # fmt: skip


def _scheduled(ask: Ask, step: int) -> Any:
    """One request's part of a scheduler's message: prompt scores come with the first, and begin with nothing. Where no
    token was asked for, one entry comes all the same."""
    last = step == max(1, ask.new_tokens) - 1
    stopped = {"type": "stop", "matched": 9} if ask.stop == 9 else {"type": "length", "length": ask.new_tokens}
    scored = ask.score_from is not None and step == 0
    token = (8, 9)[step]
    return SimpleNamespace(
        rids=["r"], finished_reasons=[stopped if last else None], prompt_tokens=[3], retraction_counts=[0],
        reasoning_tokens=[0], completion_tokens=[step + 1 if ask.new_tokens else 0], cached_tokens=[1],
        weight_versions=None, cached_tokens_details=None, customized_info=None, time_stats=None,
        output_strs=[f" t{token}"], output_ids=[[token] if ask.new_tokens else []],
        input_token_logprobs_val=[[None, -1.5, -2.25] if scored else []],
        input_token_logprobs_idx=[[5, 6, 7] if scored else []],
        input_top_logprobs_val=[[None, [-1.0, -1.5], [-2.0, -2.25]] if scored else []],
        input_top_logprobs_idx=[[None, [4, 6], [3, 7]] if scored else []], input_top_logprobs_val_flat=None,
        output_token_logprobs_val=[[-0.5 - step]], output_token_logprobs_idx=[[token]],
        output_top_logprobs_val=[[[-0.5 - step, -2.0]]], output_top_logprobs_idx=[[[token, 4]]],
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
