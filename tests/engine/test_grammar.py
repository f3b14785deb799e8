"""Grammars: what may come next depends on the output alone, and what can't be compiled or continued is an error."""

from __future__ import annotations

import asyncio
import json
import re
import threading

import pytest

from tests.engine.serving import GREEDY, collected, fake_engine, text_of, tokens_of
from zerokl.engine.fake import BYTE_VOCAB, END, EOS, ByteTokenizer
from zerokl.engine.grammar import GrammarMask, Grammars
from zerokl.engine.process import GRAMMAR_THREADS
from zerokl.engine.vocabulary import Vocabulary
from zerokl.errors import InvalidRequest
from zerokl.wire.client import EngineClient
from zerokl.wire.messages import Grammar, LogprobOptions, Sampling, Stopping

GRAMMARS = Grammars(ByteTokenizer(), BYTE_VOCAB, frozenset([EOS, END]))
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def mask_of(kind, source, stop_ids=frozenset([EOS, END]), min_new_tokens=0):
    mask = GrammarMask(GRAMMARS, Grammar(kind, source), stop_ids, min_new_tokens)
    mask.compile()
    return mask


def allowed(mask, output=b""):
    bits = mask(list(output))
    return {token for token in range(BYTE_VOCAB) if bits[token // 8] >> token % 8 & 1}


@pytest.mark.parametrize(
    ("kind", "source", "first"),
    [
        ("regex", "[ab]c", b"ab"),
        ("ebnf", 'root ::= "x" y\ny ::= [0-9]', b"x"),
        ("ebnf", 'start: "x" y\ny: /[0-9]/', b"x"),
        ("json_schema", '{"enum": ["q"]}', b'"'),
        ("json_schema", "true", b' \n\t\r{["-0123456789tfn'),
    ],
)
def test_each_kind_says_what_comes_first(kind, source, first):
    assert allowed(mask_of(kind, source)) - {32, 9, 10, 13} == set(first) - {32, 9, 10, 13}


def test_the_end_is_allowed_where_the_grammar_is_complete_and_only_the_end_where_it_can_not_go_on():
    mask = mask_of("regex", "ab?")
    assert allowed(mask) == {ord("a")}
    assert allowed(mask, b"a") == {ord("b"), EOS, END}
    assert allowed(mask, b"ab") == {EOS, END}


def test_a_character_of_several_bytes_is_allowed_byte_by_byte():
    mask = mask_of("regex", "é")
    assert [allowed(mask, "é".encode()[:count]) for count in (0, 1)] == [{0xC3}, {0xA9}]


def test_a_special_tokens_name_is_only_text():
    mask = mask_of("regex", "<s>")
    assert allowed(mask) == {ord("<")}
    assert allowed(mask, b"<s") == {ord(">")}


def test_too_few_tokens_put_the_end_off_unless_nothing_else_is_left():
    mask = mask_of("regex", "ab?", min_new_tokens=2)
    assert allowed(mask, b"a") == {ord("b")}
    assert allowed(mask_of("regex", "a", min_new_tokens=9), b"a") == {EOS, END}


def test_what_one_request_did_leaves_no_trace_in_the_next():
    used = mask_of("json_schema", json.dumps(PERSON))
    before = [used(list(b'{"name":"x'[:count])) for count in range(10)]
    again = mask_of("json_schema", json.dumps(PERSON))
    assert [again(list(b'{"name":"x'[:count])) for count in range(10)] == before


def test_asked_twice_about_one_output_it_says_the_same():
    mask = mask_of("regex", "abc")
    assert mask(list(b"a")) == mask(list(b"a"))
    assert allowed(mask, b"ab") == {ord("c")}


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        ("regex", "a[0-9", "unclosed character class"),
        ("json_schema", "{", "Expecting property name"),
        ("json_schema", "[1]", "object schema"),
        ("json_schema", '{"type": "objekt"}', "Invalid type: objekt"),
        ("json_schema", '{"not": {}}', "Unimplemented keys"),
        ("json_schema", "[" * 100_000, "nested too deeply"),
        ("json_schema", '{"$ref": "http://other/schema"}', "does not fetch"),
        ("ebnf", 'root ::= "', ""),
        ("ebnf", "", "No 'root' rule"),
        ("regex", "a" * (1 << 21), "at most 1048576"),
        ("poem", "roses", "the kinds are json_schema, regex, ebnf, structural_tag"),
        ("structural_tag", "{}", "structures must be a list"),
        ("structural_tag", '{"structures": [{"begin": "<a>"}], "triggers": ["<b"]}', "no trigger begins"),
    ],
)
def test_what_does_not_compile_is_refused_in_a_line_that_names_it(kind, source, words):
    with pytest.raises(InvalidRequest, match=re.escape(f"{kind} is not usable: ") + ".*" + re.escape(words)) as caught:
        mask_of(kind, source)
    assert caught.value.param == kind
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_grammar_of_too_many_expressions_is_refused_when_it_is_compiled():
    """The library's own limit takes it, and each draw's mask may then take seconds, for which everybody waits."""
    words = [f"{number * 7919 % 100_003:06}word" for number in range(60_000)]
    with pytest.raises(InvalidRequest, match=r"json_schema is not usable: .*too big"):
        mask_of("json_schema", json.dumps({"enum": words}))
    assert allowed(mask_of("json_schema", json.dumps({"enum": words[:20_000]}))) >= {ord('"')}


def test_a_model_without_an_end_or_without_bytes_has_no_grammars():
    with pytest.raises(InvalidRequest, match="no token that ends"):
        Grammars(ByteTokenizer(), BYTE_VOCAB, frozenset()).matcher(Grammar("regex", "a"))
    wordy = ByteTokenizer()
    wordy.spells_bytes = False
    with pytest.raises(InvalidRequest, match="no bytes of their own"):
        Grammars(wordy, BYTE_VOCAB, frozenset([EOS])).matcher(Grammar("regex", "a"))


def test_a_structural_tag_leaves_text_free_and_rules_what_follows_a_trigger():
    tag = {"begin": "<f=a>", "schema": PERSON, "end": "</f>"}
    mask = mask_of("structural_tag", json.dumps({"structures": [tag], "triggers": ["<f="]}))
    assert EOS in allowed(mask, b"hm <")
    assert allowed(mask, b"hm <f=") == {ord("a")}
    assert allowed(mask, b"hm <f=a") == {ord(">")}


class Spaced(ByteTokenizer):
    """Begins every text with a space, as SentencePiece's do."""

    def encode(self, text, *, add_special_tokens=True):
        return [32, *text.encode()]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), Spaced()])
@pytest.mark.parametrize("text", ["ab", "", " ab", "a<s>b</s>", "é\n"])
def test_a_forced_text_is_encoded_as_text_and_gives_itself_back(tokenizer, text):
    assert bytes(Vocabulary(tokenizer, BYTE_VOCAB, [EOS])(text)) == text.encode()


class Mute(ByteTokenizer):
    """An encoder that gives nothing back as it was."""

    def encode(self, text, *, add_special_tokens=True):
        return [63]


def test_a_text_that_the_encoder_changes_is_spelt_by_the_vocabulary():
    assert bytes(Vocabulary(Mute(), BYTE_VOCAB, [EOS])("aé")) == "aé".encode()


# ---- in the engine


def ask(engine, grammars, **options):
    async def talk(client: EngineClient):
        streams = [client.submit([7, place], grammar=grammar, **options) for place, grammar in enumerate(grammars)]
        return await asyncio.gather(*map(collected, streams))

    return engine.ask(talk)


CROWD = [
    Grammar("json_schema", json.dumps(PERSON)),
    None,
    Grammar("regex", "(ab|cd){3}"),
    Grammar("ebnf", 'root ::= "yes" | "no"'),
    Grammar("json_schema", json.dumps(PERSON)),
] * 4


@pytest.mark.parametrize("lag", [0, 1])
def test_bits_are_equal_alone_and_in_a_crowd_of_grammars(tmp_path, lag):
    options = {"sampling": Sampling(seed=3), "max_new_tokens": 60, "logprobs": LogprobOptions(0, 2)}
    with fake_engine(tmp_path, lag=lag, num_pages=14, page_size=8, chunked_prefill_size=9) as engine:
        crowd = ask(engine, CROWD, **options)
        alone = []
        for place, grammar in enumerate(CROWD[:5]):
            alone.append(
                engine.ask(lambda client, p=place, g=grammar: collected(client.submit([7, p], grammar=g, **options)))
            )
    for place, records in enumerate(alone):
        assert tokens_of(records) == tokens_of(crowd[place])
        assert [record.logprobs for record in records] == [record.logprobs for record in crowd[place]]
    assert json.loads(text_of(alone[0])).keys() == {"name", "age"}
    assert re.fullmatch("(ab|cd){3}", text_of(alone[2]))
    assert text_of(alone[3]) in ("yes", "no")


def test_logprobs_are_of_the_raw_logits_whatever_the_grammar_leaves(tmp_path):
    options = {"sampling": GREEDY, "max_new_tokens": 4, "logprobs": LogprobOptions(num_top=3)}
    with fake_engine(tmp_path) as engine:
        free, ruled = ask(engine, [None, Grammar("regex", "q+")], **options)
        (scored,) = engine.ask(
            lambda client: collected(
                client.submit([7, 1, *tokens_of(ruled)], max_new_tokens=0, logprobs=LogprobOptions(1, 3))
            )
        )
    assert text_of(ruled) == "qqqq"
    chosen = b"".join(record.logprobs.chosen for record in ruled)
    assert scored.scores.chosen == chosen
    assert text_of(free) != text_of(ruled)


def test_a_grammar_ends_the_request_even_if_eos_is_ignored(tmp_path):
    options = {"stopping": Stopping(ignore_eos=True), "sampling": GREEDY, "max_new_tokens": 50}
    with fake_engine(tmp_path) as engine:
        ((*_, last),) = ask(engine, [Grammar("regex", "abc")], **options)
    assert (last.done.kind, last.done.completion_tokens, last.done.matched_id) == ("stop", 4, EOS)


def test_a_bad_grammar_is_refused_with_the_first_record_and_others_go_on(tmp_path):
    with fake_engine(tmp_path) as engine:
        (refused,), good = ask(engine, [Grammar("regex", "a["), Grammar("regex", "ok")], max_new_tokens=9)
    assert (refused.done.status, refused.done.param) == (400, "regex")
    assert refused.done.message.startswith("regex is not usable: ")
    assert text_of(good) == "ok"


def test_a_grammar_that_can_not_go_on_is_an_error_and_shows_nothing_it_did_not_allow(tmp_path, monkeypatch):
    whole = GrammarMask._next_mask

    def broken(self, outputs):
        if len(outputs) == 2:
            self._matcher.consume_tokens([0, 0])
        return whole(self, outputs)

    monkeypatch.setattr(GrammarMask, "_next_mask", broken)
    with fake_engine(tmp_path) as engine:
        records, other = ask(engine, [Grammar("regex", "abcdef"), None], max_new_tokens=9)
        stats = engine.ask(lambda client: client.control("server_info"))
    assert text_of(records) == "ab"
    assert (records[-1].done.kind, records[-1].done.status) == ("abort", 400)
    assert "can't go on" in records[-1].done.message
    assert len(tokens_of(other)) == 9
    assert stats["cache"]["leased"] == 0


@pytest.fixture
def slow_compile(monkeypatch):
    """Compiling waits until the test lets it go on."""
    go_on = threading.Event()
    compile_now = GrammarMask.compile

    def compile_later(self):
        assert go_on.wait(10)
        compile_now(self)

    monkeypatch.setattr(GrammarMask, "compile", compile_later)
    yield go_on
    go_on.set()


def test_an_abort_while_the_grammar_is_compiled_ends_the_request_at_once_and_for_good(tmp_path, slow_compile):
    async def talk(client):
        stream = client.submit([1], grammar=Grammar("regex", "a+"), max_new_tokens=50)
        stream.abort()
        records = await collected(stream)
        slow_compile.set()
        after = await collected(client.submit([2], grammar=Grammar("regex", "b"), max_new_tokens=5))
        return records, after, await client.control("server_info")

    with fake_engine(tmp_path) as engine:
        records, after, stats = engine.ask(talk)
    assert [record.done.kind for record in records] == ["abort"]
    assert text_of(after) == "b"
    assert stats["submitted"] == 1


def test_what_was_aborted_while_it_waited_is_not_compiled(tmp_path, slow_compile, monkeypatch):
    compiled, compile_later = [], GrammarMask.compile

    def counted(self):
        compiled.append(self)
        compile_later(self)

    monkeypatch.setattr(GrammarMask, "compile", counted)

    async def talk(client):
        streams = [client.submit([1], grammar=Grammar("regex", "a" * n), max_new_tokens=5) for n in range(1, 20)]
        for stream in streams:
            stream.abort()
            await collected(stream)
        slow_compile.set()
        await collected(client.submit([2], grammar=Grammar("regex", "b"), max_new_tokens=5))

    with fake_engine(tmp_path) as engine:
        engine.ask(talk)
    assert len(compiled) <= GRAMMAR_THREADS + 1


def test_requests_without_a_grammar_do_not_wait_for_one_that_is_compiled(tmp_path, slow_compile):
    async def talk(client):
        waiting = client.submit([1], grammar=Grammar("regex", "a"), max_new_tokens=5)
        plain = await collected(client.submit([2], sampling=GREEDY, max_new_tokens=5))
        slow_compile.set()
        return plain, await collected(waiting)

    with fake_engine(tmp_path) as engine:
        plain, ruled = engine.ask(talk)
    assert len(tokens_of(plain)) == 5
    assert text_of(ruled) == "a"


def test_a_drain_answers_requests_whose_grammar_is_still_compiled(tmp_path, slow_compile):
    async def talk(client):
        waiting = client.submit([1], grammar=Grammar("regex", "a"), max_new_tokens=5)
        await client.control("shutdown", timeout_s=5)
        slow_compile.set()
        return await collected(waiting)

    with fake_engine(tmp_path) as engine:
        (*_, last) = engine.ask(talk)
    assert (last.done.status, last.done.code) == (503, "draining")
