"""`LLM` on a tiny real model: alone and in a crowd, streamed, scored, aborted, asked badly."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from zerokl import LLM
from zerokl.errors import ConfigError, EngineError, InvalidRequest
from zerokl.llm import Output, Params

OTHERS = ["in the hall", "hello " * 40, [5], "a", "and then the other thing " * 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", seed=3))


@pytest.fixture
def llm(folder):
    with LLM(folder, max_total_tokens=2048, page_size=16, chunked_prefill_size=32) as llm:
        yield llm


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_prompt_alone_and_in_a_crowd_gives_the_same_bits(llm, temperature):
    asked = {"max_new_tokens": 12, "temperature": temperature, "top_logprobs": 3, "ignore_eos": True}
    alone = llm.generate("the other", **asked)
    crowd = llm.generate([*OTHERS, "the other", *OTHERS], **asked)
    assert crowd[len(OTHERS)].token_ids == alone.token_ids
    assert crowd[len(OTHERS)].logprobs == alone.logprobs
    assert crowd[len(OTHERS)].top_logprobs == alone.top_logprobs
    assert len(set(alone.logprobs)) > 6
    assert max(int(width) for width in llm.stats["decode_widths"]) == 11


def test_scoring_what_was_generated_gives_the_same_bits(llm):
    output = llm.generate("the hall", max_new_tokens=20, logprobs=True, ignore_eos=True)
    scores = llm.score(output.all_ids, start=len(output.prompt_ids) - 1)
    assert scores[0] is None
    assert scores[1:] == output.logprobs


def test_a_cached_prefix_changes_no_bit(llm):
    first = llm.generate("hello " * 20, max_new_tokens=5, logprobs=True, ignore_eos=True)
    again = llm.generate("hello " * 20, max_new_tokens=5, logprobs=True, ignore_eos=True)
    assert (first.cached_tokens, again.cached_tokens > 0) == (0, True)
    assert again.logprobs == first.logprobs
    assert llm.flush_cache()
    assert llm.generate("hello " * 20, max_new_tokens=1).cached_tokens == 0


def test_the_stream_joined_is_the_text(llm):
    asked = {"max_new_tokens": 30, "temperature": 1.0, "seed": 4, "ignore_eos": True}
    pieces = list(llm.stream("the", **asked))
    assert "".join(pieces) == llm.generate("the", **asked).text
    assert len(pieces) > 3


def test_a_stream_left_early_ends_its_request(llm):
    stream = llm.stream("the", max_new_tokens=1000, temperature=1.0, ignore_eos=True)
    next(stream)
    del stream
    llm.generate("a", max_new_tokens=2)
    assert llm.stats["running"] == 0
    assert llm.stats["aborted"] == 1
    assert llm.stats["cache"]["leased"] == 0


def test_threads_share_one_batch_and_each_gets_its_own_answer(llm):
    prompts = [f"{number} hello" for number in range(6)]
    expected = [llm.generate(prompt, max_new_tokens=15, logprobs=True, ignore_eos=True).logprobs for prompt in prompts]
    found: dict[str, list[float]] = {}

    def ask(prompt: str) -> None:
        found[prompt] = llm.generate(prompt, max_new_tokens=15, logprobs=True, ignore_eos=True).logprobs

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[prompt] for prompt in prompts] == expected


def test_more_prompts_than_the_queue_holds_are_all_answered_in_order(folder):
    with LLM(folder, max_total_tokens=512, page_size=16, max_running_requests=3, max_queued_requests=2) as llm:
        prompts = [[number] for number in range(1, 40)]
        outputs = llm.generate(prompts, max_new_tokens=2, ignore_eos=True, progress=False)
    assert [output.prompt_ids for output in outputs] == prompts
    assert all(len(output.token_ids) == 2 for output in outputs)


def test_a_prompt_may_be_text_or_ids_of_any_integer_kind(llm):
    ids = llm.ids_of("the hall")
    outputs = [llm.generate(prompt, max_new_tokens=3, temperature=0.0) for prompt in ("the hall", ids, np.array(ids))]
    assert outputs[0] == outputs[1]
    assert outputs[2].token_ids == outputs[0].token_ids
    (listed,) = llm.generate([ids], max_new_tokens=3, temperature=0.0)
    assert listed.text == outputs[0].text


def test_chat_goes_through_the_models_template(llm):
    output = llm.chat([{"role": "user", "content": "hello"}], max_new_tokens=3, temperature=0.0)
    expected = llm.ids_of("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    assert output.prompt_ids == expected
    assert "".join(llm.stream("hello", chat=True, max_new_tokens=3, temperature=0.0)) == output.text


def test_logprobs_come_as_they_were_asked(llm):
    output = llm.generate(
        [1, 2, 3], max_new_tokens=4, top_logprobs=2, token_ids_logprob=[7, 9], logprob_start=1, ignore_eos=True
    )
    assert [len(row) for row in output.top_logprobs] == [2] * 4
    assert [len(row) for row in output.token_ids_logprobs] == [2] * 4
    assert output.prompt_logprobs[0] is None
    assert [row if row is None else len(row) for row in output.prompt_top_logprobs] == [None, 2]
    assert all(row[0][1] >= row[1][1] for row in output.top_logprobs)
    plain = llm.generate([1, 2, 3], max_new_tokens=4)
    assert plain.logprobs is plain.top_logprobs is plain.prompt_logprobs is None


def test_params_may_be_a_mapping_an_object_or_keywords(llm):
    answers = [
        llm.generate("the", {"max_new_tokens": 3, "temperature": 0.0}),
        llm.generate("the", Params(max_new_tokens=3, temperature=0.0)),
        llm.generate("the", {"max_new_tokens": 9}, max_new_tokens=3, temperature=0.0),
    ]
    assert answers[0] == answers[1] == answers[2]


def test_an_unseeded_sample_repeats_and_its_seed_is_named(llm):
    first, again = (llm.generate("the", max_new_tokens=8, temperature=1.0, ignore_eos=True) for _ in range(2))
    assert first == again
    assert llm.generate("the", max_new_tokens=8, temperature=1.0, ignore_eos=True, seed=first.seed).text == first.text
    samples = {llm.generate("the", max_new_tokens=8, temperature=1.0, ignore_eos=True, sample=n).text for n in range(5)}
    assert len(samples) > 1


def test_stop_strings_cut_the_text(llm):
    whole = llm.generate("the", max_new_tokens=20, temperature=1.0, ignore_eos=True)
    stop = whole.text[3:5]
    cut = llm.generate("the", max_new_tokens=20, temperature=1.0, ignore_eos=True, stop=stop)
    assert (cut.finish_reason, cut.matched) == ("stop", stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ([], {}, "prompts is empty"),
        ("", {}, "the prompt is empty"),
        ([1, 999], {}, r"prompt\[1\] is 999: ids run from 0 to"),
        (["a", [1, 999]], {}, r"prompt 1: prompt\[1\] is 999"),
        (["a", ["b"]], {}, r"prompt 1: prompt\[0\] is 'b': an id is an integer"),
        ([1, 2.5], {}, r"prompt\[1\] is 2.5"),
        ([1, True], {}, r"prompt\[1\] is True"),
        (7, {}, "prompts is int"),
        ("a", {"temprature": 1}, "unknown parameter 'temprature'; nearest: temperature"),
        ("a", {"temperature": "hot"}, "temperature: expected `float | null`, got `str`"),
        ("a", {"temperature": -1.0}, "temperature is -1.0"),
        ("a", {"max_new_tokens": -1}, "max_new_tokens: expected `int` >= 0"),
        ("a", {"max_new_tokens": 5000}, "the context length is 4096"),
        ("a", {"stop": [1]}, r"stop\[0\]: expected `str`, got `int`"),
        ("a", {"top_logprobs": 5000}, "top_logprobs asks for 5000"),
        ([1] * 4090, {}, "the context length is 4096"),
        ([1] * 3000, {"max_new_tokens": 1}, "the whole cache has 2048"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_the_llm_lives_on(llm, prompts, params, message):
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(prompts, **params)
    assert isinstance(llm.generate("a", max_new_tokens=1), Output)
    assert llm.stats["running"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_sice": 1}, "unknown option 'page_sice'; nearest: page_size"),
        ({"page_size": 0}, "page_size is 0: the minimum is 1"),
        ({"tp_leaves": 65}, "tp_leaves is 65: the maximum is 64"),
        ({"dtype": "int3"}, "dtype is 'int3': one of auto"),
    ],
)
def test_a_bad_option_is_refused_by_name(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        LLM(folder, **options)


def test_a_closed_llm_says_so(folder):
    llm = LLM(folder, max_total_tokens=64)
    llm.close()
    llm.close()
    with pytest.raises(ConfigError, match="was closed"):
        llm.generate("a")


def test_an_engine_that_broke_is_not_used_again(llm, monkeypatch):
    def broken(plan):
        raise RuntimeError("planted")

    monkeypatch.setattr(llm._engine.engine.runner, "submit", broken)
    with pytest.raises(EngineError, match="submit failed"):
        llm.generate("a")
    monkeypatch.undo()
    with pytest.raises(EngineError, match="failed before"):
        llm.generate("a")


def test_the_progress_bar_goes_to_standard_error(llm, capfd):
    llm.generate(["a", "b"], max_new_tokens=2, progress=True)
    shown = capfd.readouterr()
    assert "2/2" in shown.err
    assert shown.out == ""


def test_importing_zerokl_loads_no_engine():
    code = "import sys, zerokl; zerokl.__version__; assert not {'zerokl.engine', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.model
def test_smollm2_alone_in_a_crowd_and_rescored_gives_the_same_bits():
    with LLM(max_total_tokens=4096) as llm:
        alone = llm.generate("The sea is", max_new_tokens=24, logprobs=True, temperature=0.0)
        crowd = llm.generate(
            ["The sea is", "Once upon a time", "def f(x):"], max_new_tokens=24, logprobs=True, temperature=0.0
        )
        assert crowd[0].logprobs == alone.logprobs
        assert llm.score(alone.all_ids, start=len(alone.prompt_ids) - 1)[1:] == alone.logprobs


GRAMMARS = [
    {"regex": "(the|hall) [a-z ]{4,9}"},
    {"json_schema": {"type": "boolean"}},
    {"ebnf": 'root ::= "hello" | "in"'},
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammars_give_the_same_bits_alone_and_in_a_crowd(llm, temperature):
    asked = {"max_new_tokens": 12, "temperature": temperature, "top_logprobs": 3, **GRAMMARS[0]}
    alone = llm.generate("the other", **asked)
    crowd = llm.generate([*OTHERS, "the other", *OTHERS], **asked)
    assert (crowd[len(OTHERS)].token_ids, crowd[len(OTHERS)].logprobs) == (alone.token_ids, alone.logprobs)
    assert all(re.fullmatch(GRAMMARS[0]["regex"], output.text) for output in [alone, *crowd])
    assert llm.score(alone.all_ids, start=len(alone.prompt_ids) - 1)[1:] == alone.logprobs


def test_each_kind_of_grammar_and_at_most_one(llm):
    assert llm.generate("hello", max_new_tokens=60, **GRAMMARS[1]).text.strip() in ("true", "false")
    assert llm.generate("hello", **GRAMMARS[2]).text in ("hello", "in")
    with pytest.raises(InvalidRequest, match="at most one grammar: json_schema and regex"):
        llm.generate("hello", regex="a", json_schema="{}")
    with pytest.raises(InvalidRequest, match="unclosed character class"):
        llm.generate("hello", regex="[")


# ---- logprobs_mode = processed: the sampler's own distribution

RL = {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "logit_bias": {7: 2.0}}


@pytest.fixture(scope="module")
def trainer(folder):
    with LLM(folder, logprobs_mode="processed", max_total_tokens=2048, page_size=16, chunked_prefill_size=32) as llm:
        yield llm


def test_processed_logprobs_are_of_what_the_sampler_drew_from(llm, trainer):
    vocab = llm._parts.served.vocab
    asked = {"max_new_tokens": 8, "top_logprobs": min(vocab, 1024), "ignore_eos": True, "seed": 5, "temperature": 2.0}
    raw, processed = llm.generate("the other", **asked), trainer.generate("the other", **asked)
    assert processed.token_ids == raw.token_ids
    for token, own, row in zip(raw.token_ids, processed.logprobs, raw.top_logprobs, strict=True):
        logits = {one: np.float64(logprob) / 2.0 for one, logprob in row}
        assert len(logits) == vocab
        expected = logits[token] - np.log(sum(np.exp(logit) for logit in logits.values()))
        assert own == pytest.approx(expected, abs=1e-5)


def test_processed_logprobs_are_the_same_bits_drawn_and_scored_alone_and_in_a_crowd(trainer):
    asked = {"max_new_tokens": 12, "ignore_eos": True, "seed": 3, "top_logprobs": 3, **RL}
    alone = trainer.generate("the other", **asked)
    crowd = trainer.generate([*OTHERS, "the other", *OTHERS], **asked)
    assert (crowd[len(OTHERS)].token_ids, crowd[len(OTHERS)].logprobs) == (alone.token_ids, alone.logprobs)
    assert crowd[len(OTHERS)].top_logprobs == alone.top_logprobs
    start = len(alone.prompt_ids) - 1
    scored = trainer.generate(alone.all_ids, max_new_tokens=0, logprob_start=start, top_logprobs=3, **RL)
    assert scored.prompt_logprobs[1:] == alone.logprobs
    assert scored.prompt_top_logprobs[1:] == alone.top_logprobs


def test_processed_is_raw_where_nothing_is_processed_and_certain_where_nothing_is_left(llm, trainer):
    asked = {"max_new_tokens": 6, "ignore_eos": True, "seed": 3, "temperature": 1.0, "logprobs": True}
    assert trainer.generate("the hall", **asked).logprobs == llm.generate("the hall", **asked).logprobs
    assert set(trainer.generate("the hall", **{**asked, "temperature": 0.0}).logprobs) == {0.0}
    ruled = trainer.generate("the hall", regex="[a-b]", max_new_tokens=1, logprobs=True, top_logprobs=3)
    assert ruled.logprobs[0] > -10
    assert ruled.top_logprobs[0][2][1] == -np.inf


def test_penalties_count_for_what_is_drawn_and_not_for_what_is_scored(llm, trainer):
    penalised = {"frequency_penalty": 2.0, "repetition_penalty": 1.5}
    asked = {"max_new_tokens": 8, "ignore_eos": True, "seed": 3, "logprobs": True, "temperature": 1.0}
    drawn, plain = trainer.generate("the hall", **asked, **penalised), llm.generate("the hall", **asked, **penalised)
    assert drawn.token_ids == plain.token_ids
    assert drawn.logprobs != plain.logprobs
    score = {"max_new_tokens": 0, "logprob_start": 0, "temperature": 1.0}
    assert trainer.generate("the hall", **score, **penalised).prompt_logprobs == llm.score("the hall")
