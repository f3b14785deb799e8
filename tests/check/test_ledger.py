"""Values meet wherever their histories agree, and nowhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zerokl.check.answers import Answer, Ask, Row
from zerokl.check.bits import float32_bits
from zerokl.check.ledger import Ledger, Setting, history_digests

SETTING = Setting("case", "somehow")


def answer(prompt: list[int], output: list[int], logprobs: list[float], **ask: object) -> Answer:
    """An answer whose output tokens have these logprobs and no top rows."""
    rows = tuple(
        Row(len(prompt) + index, token, float32_bits(value), (), "decoded")
        for index, (token, value) in enumerate(zip(output, logprobs, strict=True))
    )
    return Answer(Ask(tuple(prompt), len(output), **ask), tuple(output), rows)  # type: ignore[arg-type]


def other() -> Setting:
    return Setting("case", "otherwise")


def test_equal_answers_compare_tokens_and_logprobs_and_do_not_differ() -> None:
    ledger = Ledger()
    assert ledger.observe(answer([1, 2], [3, 4], [-1.0, -2.0]), SETTING).values == 0
    again = ledger.observe(answer([1, 2], [3, 4], [-1.0, -2.0]), other())
    assert (again.values, again.positions, again.differing) == (4, 2, 0)


def test_one_ulp_is_a_difference() -> None:
    ledger = Ledger()
    ledger.observe(answer([1], [2], [-1.0]), SETTING)
    (difference,) = ledger.observe(answer([1], [2], [-1.0000001192092896]), other()).differences
    assert (difference.kind, difference.position, difference.token) == ("logprob", 1, 2)


def test_positions_after_a_diverging_token_are_dropped_but_the_divergence_counts() -> None:
    ledger = Ledger()
    ledger.observe(answer([1], [2, 3, 4], [-1.0, -2.0, -3.0]), SETTING)
    found = ledger.observe(answer([1], [2, 9, 4], [-1.0, -2.5, -3.5]), other())
    assert [item.kind for item in found.differences] == ["token"]
    assert found.values == 3  # token and logprob at position 1, the token at 2; nothing at 3


def test_a_longer_prompt_meets_the_answer_that_it_repeats() -> None:
    ledger = Ledger()
    ledger.observe(answer([1], [2, 3], [-1.0, -2.0]), SETTING)
    assert ledger.observe(answer([1, 2], [3], [-2.0]), other()).values == 2


def test_other_seed_is_another_draw_but_the_same_distribution() -> None:
    ledger = Ledger()
    ledger.observe(answer([1], [2], [-1.0], temperature=1.0, seed=5), SETTING)
    found = ledger.observe(answer([1], [3], [-1.5], temperature=1.0, seed=6), other())
    assert (found.values, found.differing) == (0, 0)
    found = ledger.observe(answer([1], [2], [-1.5], temperature=1.0, seed=7), other())
    assert [item.kind for item in found.differences] == ["logprob"]


def test_top_rows_of_different_widths_are_compared_as_far_as_both_reach() -> None:
    ledger = Ledger()
    wide = tuple((token, float32_bits(-token)) for token in range(1, 6))
    swapped = (wide[1], wide[0])

    def of(top: tuple[tuple[int, int], ...]) -> Answer:
        return Answer(Ask((7,), 1), (1,), (Row(1, 1, float32_bits(-1.0), top, "first"),))

    ledger.observe(of(wide[:3]), SETTING)
    assert ledger.observe(of(wide), other()).differing == 0
    assert [item.kind for item in ledger.observe(of(swapped), other()).differences] == ["ranking"]


def test_chosen_logprob_that_is_not_the_one_in_its_own_top_row_is_a_difference() -> None:
    row = Row(1, 1, float32_bits(-1.0), ((1, float32_bits(-1.5)),), "first")
    found = Ledger().observe(Answer(Ask((7,), 1), (1,), (row,)), SETTING)
    assert (found.values, found.differing) == (0, 1)


@given(
    left=st.lists(st.integers(0, 3), max_size=8),
    right=st.lists(st.integers(0, 3), max_size=8),
)
def test_histories_have_equal_digests_exactly_where_their_ids_agree(left: list[int], right: list[int]) -> None:
    for position, (one, two) in enumerate(zip(history_digests(left), history_digests(right), strict=False)):
        assert (one == two) == (left[:position] == right[:position])
