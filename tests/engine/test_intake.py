"""What a request becomes: defaults and seeds resolved, ranges checked, each refusal naming what was given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from zerokl.engine.fake import BOS, EOS, ByteTokenizer
from zerokl.engine.intake import Intake, Served
from zerokl.engine.seeds import default_seed, seed_of
from zerokl.errors import ConfigError, InvalidRequest
from zerokl.types import LogprobSpec, Progress, RequestId, SamplingParams
from zerokl.wire.messages import Bias, Grammar, LogprobOptions, Sampling, Span, Stopping, Submit

DEFAULTS = Sampling(temperature=0.6, top_k=40)
SERVED = Served(ByteTokenizer(), 259, 64, frozenset([EOS]), 7, DEFAULTS)


def take(prompt=(1, 2), served=SERVED, **fields):
    fields = {"sampling": Sampling(), "stopping": Stopping(), **fields}
    return Intake(served).take(Submit(5, Span(), **fields), list(prompt))


def refusal(**fields) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        take(**fields)
    return caught.value


def test_absent_sampling_values_become_the_models_defaults_or_neutral():
    request, _ = take(sampling=Sampling(top_p=0.5))
    assert request.sampling == SamplingParams(temperature=0.6, top_p=0.5, top_k=40, seed=seed_of(7, [1, 2]))


def test_given_sampling_values_win_over_defaults():
    asked = Sampling(1.0, 0.9, -1, 0.1, 0.5, -0.5, 1.5, -3, 4, [Bias(9, 1.0), Bias(3, -2.0)])
    request, _ = take(sampling=asked)
    bias = ((3, -2.0), (9, 1.0))
    assert request.sampling == SamplingParams(1.0, 0.9, -1, 0.1, 0.5, -0.5, 1.5, bias, -3, 4)


@pytest.mark.parametrize("temperature", [0.0, 9e-7, -0.0])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature):
    assert take(sampling=Sampling(temperature=temperature))[0].sampling.temperature == 0.0


def test_an_id_that_stands_for_an_image_is_named():
    served = replace(SERVED, media_ids={200: "image", 201: "audio"})
    refused = refusal(prompt=[5, 6, 201, 7], served=served)
    assert (refused.status, refused.param) == (400, "prompt")
    assert str(refused) == "prompt[2] is 201, which stands for audio input: only text is supported"
    assert take([5, 202], served=served)[0].prompt == [5, 202]


def test_absent_length_reaches_to_the_end_of_the_context():
    assert take([1] * 10)[0].max_new_tokens == 54


def test_a_prompt_that_fills_the_context_can_only_be_scored():
    assert take([1] * 64, max_new_tokens=0)[0].max_new_tokens == 0
    assert refusal(prompt=[1] * 64).code == "context_length_exceeded"


def test_stop_ids_that_the_model_does_not_have_are_left_out():
    assert take(stopping=Stopping(token_ids=[9, 259, 119_690]))[0].stop_token_ids == {9, EOS}


def test_with_a_grammar_eos_stops_always_and_the_mask_sees_to_the_least_length():
    asked = {"grammar": Grammar("regex", "ab"), "stopping": Stopping(token_ids=[9], ignore_eos=True)}
    request, text = take(min_new_tokens=3, **asked)
    assert request.stop_token_ids == {9, EOS}
    assert request.min_new_tokens == 0
    text.mask.compile()
    assert text.mask([]) == text.mask([])
    assert take()[1].mask is None


def test_eos_stops_unless_it_is_ignored():
    assert take(stopping=Stopping(token_ids=[9]))[0].stop_token_ids == {9, EOS}
    assert take(stopping=Stopping(token_ids=[9], ignore_eos=True))[0].stop_token_ids == {9}


def test_logprobs_are_computed_only_if_asked():
    assert take()[0].logprobs is None
    request, _ = take(logprobs=LogprobOptions(1, 2, [3]))
    assert (request.logprobs, request.logprob_start) == (LogprobSpec(2, (3,)), 1)


@pytest.mark.parametrize(("start", "nulls"), [(None, 0), (-1, 0), (0, 1), (1, 1), (2, 0)])
def test_the_first_scored_position_has_a_null_entry(start, nulls):
    _, text = take(logprobs=None if start is None else LogprobOptions(start))
    record = text.advance(Progress(RequestId(1), 65))
    assert record.first.leading_nulls == nulls
    assert (record.first.prompt_tokens, record.first.seed) == (2, seed_of(7, [1, 2]))


def test_a_stop_string_that_names_a_skipped_special_token_works_by_id():
    _, text = take(stopping=Stopping(strings=["<s>"]))
    assert text.advance(Progress(RequestId(1), BOS)).done.matched_text == "<s>"
    _, text = take(stopping=Stopping(strings=["<s>"]), skip_special_tokens=False)
    assert text.advance(Progress(RequestId(1), BOS)).done.matched_text == "<s>"


def test_every_request_has_a_number_of_its_own():
    intake = Intake(SERVED)
    submit = Submit(5, Span(), Sampling(), Stopping())
    assert len({intake.take(submit, [1])[0].request_id for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": []}, "prompt", "the prompt is empty"),
        ({"prompt": [1, -1]}, "prompt", "prompt[1] is -1: ids run from 0 to 258"),
        ({"prompt": [259]}, "prompt", "prompt[0] is 259"),
        ({"prompt": [1] * 70}, "prompt", "the prompt has 70 tokens, the context length is 64"),
        ({"max_new_tokens": 63}, "max_new_tokens", "2 prompt tokens and max_new_tokens 63 make 65"),
        ({"max_new_tokens": 3, "min_new_tokens": 4}, "min_new_tokens", "min_new_tokens is 4, max_new_tokens 3"),
        ({"sampling": Sampling(temperature=-0.1)}, "temperature", "temperature is -0.1: it must be at least 0"),
        ({"sampling": Sampling(temperature=float("inf"))}, "temperature", "temperature is inf"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p", "top_p is 0.0: it must be above 0 and at most 1"),
        ({"sampling": Sampling(min_p=1.1)}, "min_p", "min_p is 1.1: it must be at least 0 and at most 1"),
        ({"sampling": Sampling(frequency_penalty=2.5)}, "frequency_penalty", "at least -2 and at most 2"),
        ({"sampling": Sampling(presence_penalty=float("nan"))}, "presence_penalty", "presence_penalty is nan"),
        ({"sampling": Sampling(repetition_penalty=0.0)}, "repetition_penalty", "above 0 and at most 2"),
        ({"sampling": Sampling(top_k=0)}, "top_k", "top_k is 0: -1 (all) or at least 1"),
        ({"sampling": Sampling(seed=2**63)}, "seed", "64 bits with sign"),
        ({"sampling": Sampling(logit_bias=[Bias(259, 0.0)])}, "logit_bias", "logit_bias[0] is 259"),
        ({"sampling": Sampling(logit_bias=[Bias(1, float("nan"))])}, "logit_bias", "logit_bias of 1 is nan"),
        ({"logprobs": LogprobOptions(-2)}, "logprob_start", "-1 to 2"),
        ({"logprobs": LogprobOptions(3)}, "logprob_start", "logprob_start is 3: -1 to 2"),
        ({"logprobs": LogprobOptions(0, 260)}, "top_logprobs", "asks for 260: at most 259"),
        ({"logprobs": LogprobOptions(0, 0, [300])}, "token_ids_logprob", "token_ids_logprob[0] is 300"),
        ({"stopping": Stopping(strings=[""])}, "stop", "stop has an entry of 0 characters"),
        ({"stopping": Stopping(strings=["a"] * 33)}, "stop", "stop has 33 entries: at most 32"),
        ({"stopping": Stopping(strings=["a" * 1001])}, "stop", "1001 characters"),
        ({"stopping": Stopping(regexes=["("])}, "stop_regex", "stop_regex '('"),
        ({"stopping": Stopping(regexes=["a{400}", "b{400}", "c{400}"])}, "stop_regex", "needs 1203 states"),
        ({"priority": 2**31}, "priority", "32 bits"),
    ],
)
def test_a_refusal_names_the_parameter_the_value_and_what_is_allowed(fields, param, message):
    error = refusal(**fields)
    assert error.param == param
    assert message in str(error)
    assert error.status == 400


@given(st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(0, 2**31 - 1), max_size=5))
def test_a_seed_is_a_stable_function_of_default_seed_and_prompt(seed, prompt):
    assert seed_of(seed, prompt) == seed_of(seed, tuple(prompt))
    assert 0 <= seed_of(seed, prompt) < 2**63
    assert seed_of(seed, prompt) != seed_of(seed, [*prompt, 0])
    assert seed_of(seed, prompt) != seed_of(seed ^ 1, prompt)


def test_seeds_never_change_between_versions():
    assert seed_of(0, []) == 6784561911692921498
    assert seed_of(0, [1, 2, 3]) == 5283651367834131657
    assert seed_of(-1, [2**31 - 1]) == 2510280483599967119


def test_a_default_seed_is_a_number_or_drawn():
    assert (default_seed(5), default_seed("-7")) == (5, -7)
    assert default_seed("random") != default_seed("random")
    for wrong in ("x", 2**63, ""):
        with pytest.raises(ConfigError, match="random_seed"):
            default_seed(wrong)
