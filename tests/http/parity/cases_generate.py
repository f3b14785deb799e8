"""Cases of /generate: prompts, sampling, logprobs, streams, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.http.parity.exchanges import Case

GREEDY = {"temperature": 0, "max_new_tokens": 3}


def case(why: str, **body: Any) -> Case:
    return Case(why, "POST", "/generate", body)


def sampled(why: str, text: str = "ab", **params: Any) -> Case:
    return case(why, text=text, sampling_params={**GREEDY, **params})


def bad(why: str, **params: Any) -> Case:
    return case(why, text="ab", sampling_params=params)


def prompts() -> Iterator[Case]:
    yield case("a text prompt gives one object", text="ab", sampling_params=GREEDY)
    yield case("ids are the same prompt", input_ids=[97, 98], sampling_params=GREEDY)
    yield case("a list of one is still an array", text=["ab"], sampling_params=GREEDY)
    yield case("a batch of texts in order", text=["ab", "stop", "end"], sampling_params=GREEDY)
    yield case("a batch of ids", input_ids=[[97, 98], [1, 2, 3]], sampling_params=GREEDY)
    yield case("a batch of one list of ids", input_ids=[[97, 98]], sampling_params=GREEDY)
    yield case("default sampling: 128 tokens from an unseeded draw", text="ab")
    yield case("characters of four bytes", text="我😀é", sampling_params=GREEDY)
    yield case("a text that is a control character", text="\x00", sampling_params=GREEDY)
    yield case("a special token inside a text", text="a<|im_end|>b</s>", sampling_params=GREEDY)
    yield case("neither prompt", sampling_params=GREEDY)
    yield case("both prompts", text="a", input_ids=[1])
    yield case("null is not given", text=None, input_ids=[97, 98], sampling_params=GREEDY)
    yield case("an empty text", text="")
    yield case("an empty batch", text=[])
    yield case("an empty text in a batch", text=["a", ""])
    yield case("empty ids", input_ids=[])
    yield case("empty ids in a batch", input_ids=[[1], []])
    yield case("ids that aren't a list", input_ids=5)
    yield case("ids mixed with lists", input_ids=[1, [2]])
    yield case("a text that is a number", text=5)
    yield case("a text list that holds a number", text=["a", 5])
    for value in (True, 1.0, "1", None, 259, -1, 2**70, {"a": 1}):
        yield case(f"the id {value!r}, with its place", input_ids=[5, value])
    yield case("a bad id inside a batch", input_ids=[[5], [6, 999]])
    yield case("a prompt as long as the context", input_ids=[5] * 512)
    yield case(
        "a prompt as long as the context can be scored", input_ids=[5] * 512, sampling_params={"max_new_tokens": 0}
    )
    yield case("a prompt past the context", input_ids=[5] * 513, sampling_params={"max_new_tokens": 0})
    yield case("prompt and output past the context", input_ids=[5] * 500, sampling_params={"max_new_tokens": 13})
    yield case("prompt and output as long as the context", input_ids=[5] * 509, sampling_params=GREEDY)
    yield case("no limit: up to the context", input_ids=[5] * 505, sampling_params={"max_new_tokens": None})
    yield case("the prompt's ids in the answer", text="ab", sampling_params=GREEDY, return_prompt_token_ids=True)
    yield case("too many prompts times samples", text=["a"] * 40, sampling_params={"n": 128})


def sampling() -> Iterator[Case]:
    yield sampled("a seed", temperature=1.0, sampling_seed=7)
    yield sampled("the lowest seed", temperature=1.0, sampling_seed=-(2**63))
    yield sampled("a seed past 64 bits", sampling_seed=2**63)
    yield sampled("a seed as a whole float", temperature=1.0, sampling_seed=7.0)
    yield sampled("n samples with one seed", temperature=1.0, n=3, sampling_seed=1)
    yield case("a batch of n samples", text=["ab", "cd"], sampling_params={"n": 2, "max_new_tokens": 2})
    yield sampled("top_p", temperature=1.0, top_p=0.5, sampling_seed=1)
    yield sampled("top_k", temperature=1.0, top_k=2, sampling_seed=1)
    yield sampled("min_p", temperature=1.0, min_p=0.5, sampling_seed=1)
    yield sampled("penalties", temperature=1.0, frequency_penalty=1, presence_penalty=-1.5, repetition_penalty=1.2)
    yield sampled("a bias", logit_bias={"97": 100, "98": -100})
    yield sampled("a nearly greedy temperature is greedy", temperature=9e-7)
    yield sampled("a temperature that is read to the last bit", temperature=0.1234567890123456789, sampling_seed=3)
    yield sampled("a stop string", text="stop", stop=".", max_new_tokens=7)
    yield sampled("of two stops the earlier ends it", text="stop", stop=["two", "ne"], max_new_tokens=7)
    yield sampled(
        "of two stops at one place the first of the list", text="stop", stop=["two", "one.two"], max_new_tokens=7
    )
    yield sampled("a stop kept in the text", text="stop", stop=["."], no_stop_trim=True, max_new_tokens=7)
    yield sampled(
        "stops before min_new_tokens don't count", text="stop", stop=["n", "two"], min_new_tokens=3, max_new_tokens=7
    )
    yield sampled("a stop id", text="ab", stop_token_ids=[121])
    yield sampled("a stop id of another model", text="ab", stop_token_ids=[2**31 - 1])
    yield sampled("a stop regex", text="stop", stop_regex=["[.]t"], max_new_tokens=7)
    yield sampled("a regex that isn't one", text="stop", stop_regex=["("], max_new_tokens=7)
    yield sampled("the model's own end", text="end", max_new_tokens=9)
    yield sampled("the end is ignored", text="end", max_new_tokens=4, ignore_eos=True)
    yield sampled(
        "stop ids are ignored with the end, as in SGLang",
        text="ab",
        max_new_tokens=4,
        ignore_eos=True,
        stop_token_ids=[121],
    )
    yield sampled("special tokens shown", text="end", max_new_tokens=4, skip_special_tokens=False, no_stop_trim=True)
    yield sampled("cut inside a character", text="cut", max_new_tokens=2)
    yield sampled("score only", max_new_tokens=0)
    yield sampled("a grammar", text="q", regex="[a-c]{2}", max_new_tokens=4)
    yield sampled("a schema as an object", text="q", json_schema={"type": "integer", "minimum": 0, "maximum": 9})
    yield sampled("a schema as text", text="q", json_schema='{"enum":["a"]}', max_new_tokens=9)
    yield sampled("a grammar that can't be compiled", regex="[")
    yield sampled("two grammars", regex="a", ebnf='root ::= "a"')
    yield sampled("empty grammars are unset", regex="", ebnf="")
    for name in ("beam_width", "custom_params", "watermark"):
        yield sampled(f"{name} null passes", **{name: None})
        yield bad(f"{name} set is refused by name", **{name: 1})
    for name, value in WRONG:
        yield bad(f"{name} {value!r} is out of its range or type", **{name: value})
    yield bad("an unknown key and the nearest", temprature=1)
    yield bad("an unknown key that nothing is near to", zzzzzzzzzz=1)
    yield bad("an unknown key longer than an error shows", **{"x" * 100: 1})
    yield case("params per prompt", text=["ab", "cd"], sampling_params=[GREEDY, {"max_new_tokens": 1}])
    yield case("too few params", text=["ab", "cd"], sampling_params=[GREEDY])
    yield case("n that differs", text=["ab", "cd"], sampling_params=[{"n": 1}, {"n": 2}])
    yield case("a bad key in the second params", text=["ab", "cd"], sampling_params=[GREEDY, {"nope": 1}])
    yield case("params that are no object", text="ab", sampling_params="x")


WRONG: list[tuple[str, Any]] = [
    ("temperature", -0.1), ("temperature", "1"), ("temperature", True), ("top_p", 0), ("top_p", 1.5),
    ("top_k", 0), ("top_k", 1.5), ("min_p", -1), ("min_p", 2), ("max_new_tokens", -1), ("max_new_tokens", 2**31),
    ("max_new_tokens", 1e300), ("min_new_tokens", 200), ("n", 0), ("n", 129), ("stop", 5), ("stop", ""), ("stop", [""]),
    ("stop", ["a"] * 33), ("stop_token_ids", [1.5]), ("stop_token_ids", ["1"]), ("stop_token_ids", 3),
    ("logit_bias", {"999": 1}), ("logit_bias", {"x": 1}), ("logit_bias", {"01": 1}), ("logit_bias", {"5": "1"}),
    ("logit_bias", {"5": 2e6}), ("repetition_penalty", 0), ("repetition_penalty", 2.1), ("frequency_penalty", 3),
    ("ignore_eos", 1), ("stream_interval", 0), ("regex", 5), ("json_schema", 5), ("json_schema", [1]),
]  # fmt: skip


def logprobs() -> Iterator[Case]:
    asked: dict[str, Any] = {"text": "ab", "sampling_params": GREEDY, "return_logprob": True}
    yield case("logprobs of the output", **asked)
    yield case("of the prompt too", **asked, logprob_start_len=0)
    yield case("from the prompt's end", **asked, logprob_start_len=2)
    yield case("past the prompt's end", **asked, logprob_start_len=3)
    yield case("past it as a huge float", **asked, logprob_start_len=1e300)
    yield case("past it in 64 bits", **asked, logprob_start_len=2**64 - 1)
    yield case("a start that is ignored without logprobs", text="ab", sampling_params=GREEDY, logprob_start_len=99)
    yield case("a start below the least", **asked, logprob_start_len=-2)
    yield case("top rows", **asked, logprob_start_len=0, top_logprobs_num=2)
    yield case("ids asked for", **asked, logprob_start_len=0, token_ids_logprob=[97, 5])
    yield case(
        "all with texts",
        **asked,
        logprob_start_len=0,
        top_logprobs_num=3,
        token_ids_logprob=[0],
        return_text_in_logprobs=True,
    )
    yield case(
        "texts of pieces of characters",
        text="zh",
        sampling_params={**GREEDY, "max_new_tokens": 9},
        return_logprob=True,
        return_text_in_logprobs=True,
        logprob_start_len=0,
    )
    yield case("a logprob of -inf has the native floor", **{**asked, "text": "never"})
    yield case("a NaN is a fault of ours", **{**asked, "text": "nan"})
    yield case("a float32 is widened", **{**asked, "text": "tenth"})
    yield case("tops without logprobs are not shown", text="ab", sampling_params=GREEDY, top_logprobs_num=3)
    yield case(
        "per prompt",
        text=["ab", "cd"],
        sampling_params=GREEDY,
        return_logprob=[True, False],
        top_logprobs_num=[1, 0],
        logprob_start_len=[0, -1],
    )
    yield case(
        "ids per prompt",
        text=["ab", "cd"],
        sampling_params=GREEDY,
        return_logprob=True,
        token_ids_logprob=[[1], [2, 3]],
    )
    yield case("empty ids are none", **asked, token_ids_logprob=[])
    yield case("too many for the prompts", text=["ab", "cd"], return_logprob=[True])
    yield case("ids for too many prompts", **asked, token_ids_logprob=[[1], [2]])
    yield case("a list with n samples", text="ab", sampling_params={"n": 2}, return_logprob=[True])
    yield case("a bad id asked for", **asked, token_ids_logprob=[259])
    yield case("a bad id asked for, per prompt", text=["a", "b"], return_logprob=True, token_ids_logprob=[[1], [True]])
    yield case("more tops than there may be", **asked, top_logprobs_num=1025)
    yield case(
        "as many tops as the vocabulary has",
        **{**asked, "sampling_params": {"max_new_tokens": 1}},
        top_logprobs_num=259,
    )
    yield case("logprobs per prompt of a wrong type", text=["a", "b"], return_logprob=[True, 1])
    yield case(
        "scores alone",
        text="hello",
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=1,
    )
    yield case("n samples with logprobs", text="ab", sampling_params={"n": 2, "max_new_tokens": 2}, return_logprob=True)


def names() -> Iterator[Case]:
    yield case("a name", text="ab", sampling_params=GREEDY, rid="mine")
    yield case("an empty name is a name", text="ab", sampling_params=GREEDY, rid="")
    yield case("a name for a batch", text=["ab", "cd"], sampling_params=GREEDY, rid="pair")
    yield case("names for a batch", text=["ab", "cd"], sampling_params=GREEDY, rid=["x", "y"])
    yield case("names with samples", text=["ab", "cd"], sampling_params={"n": 2, "max_new_tokens": 1}, rid=["x", "y"])
    yield case("a name for samples", text="ab", sampling_params={"n": 2, "max_new_tokens": 1}, rid="x")
    yield case("a name twice", text=["ab", "cd"], rid=["x", "x"])
    yield case("too few names", text=["ab", "cd"], rid=["x"])
    yield case("a name that is a number", text="ab", rid=5)
    yield case("salt and priority move nothing", text="ab", sampling_params=GREEDY, cache_salt="s", priority=-5)
    yield case("a priority out of range", text="ab", priority=10**7)
    for name in ("lora_path", "image_data", "session_params", "return_hidden_states", "log_metrics"):
        yield case(f"{name} false is unset", text="ab", sampling_params=GREEDY, **{name: False})
    yield case("rank 0.0 is unset", text="ab", sampling_params=GREEDY, routed_dp_rank=0.0)
    yield case("a rank is refused by name", text="ab", routed_dp_rank=1)
    yield case("an adapter is refused by name", text="ab", lora_path="a")
    yield case("an unknown key is ignored", text="ab", sampling_params=GREEDY, stranger=1)
    yield case("the first bad field in table order", rid=1, text="a", stream="yes", top_logprobs_num=-1)


def streams() -> Iterator[Case]:
    yield case("a stream", text="ab", sampling_params=GREEDY, stream=True)
    yield case(
        "with all scores",
        text="ab",
        sampling_params=GREEDY,
        stream=True,
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
        token_ids_logprob=[1],
        return_text_in_logprobs=True,
    )
    yield case(
        "frames at token 1, then every 3",
        text="q",
        sampling_params={**GREEDY, "max_new_tokens": 8, "stream_interval": 3, "ignore_eos": True},
        stream=True,
    )
    yield case("held pieces of characters", text="zh", sampling_params={**GREEDY, "max_new_tokens": 9}, stream=True)
    yield case(
        "a stop is never sent and taken back",
        text="stop",
        sampling_params={**GREEDY, "max_new_tokens": 7, "stop": [".twX", "wo"]},
        stream=True,
    )
    yield case("one job of a batch at a time", text=["ab"], sampling_params=GREEDY, stream=True)
    yield case("seeds that were given", text=["ab"], sampling_params={**GREEDY, "sampling_seed": 9}, stream=True)
    yield case("a refusal before the head is a status", text="a", sampling_params={"regex": "["}, stream=True)
    yield case(
        "score only is one frame",
        text="ab",
        sampling_params={"max_new_tokens": 0},
        stream=True,
        return_logprob=True,
        logprob_start_len=0,
    )
    yield case(
        "the prompt's ids in each frame", text="ab", sampling_params=GREEDY, stream=True, return_prompt_token_ids=True
    )
    yield case("a NaN after the head is a frame", text="nan2", sampling_params=GREEDY, stream=True, return_logprob=True)
    yield case(
        "a NaN before the head is a status", text="nan", sampling_params=GREEDY, stream=True, return_logprob=True
    )
    yield case("a seedless draw names its seed", text="draw", sampling_params={"max_new_tokens": 4}, stream=True)
    yield case("the model's end", text="end", sampling_params={**GREEDY, "max_new_tokens": 9}, stream=True)
    yield Case("PUT works like POST", "PUT", "/generate", {"text": "ab", "sampling_params": GREEDY})


def all_cases() -> list[Case]:
    return [*prompts(), *sampling(), *logprobs(), *names(), *streams()]
