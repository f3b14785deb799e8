"""The defects that the fake engine and its servers can have, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WINDOW, TAPS = 40, 4
"""What the server says that its layers see; only the defects know of it."""

DEFECTS = {
    # name: (what is wrong, the case that must see it)
    "batch_size": ("decode rows depend on how many are decoded together", "crowd"),
    "padding_row": ("a batch padded to a power of two leaks its padding", "crowd"),
    "slot": ("the row in the middle of a batch is computed differently", "order"),
    "mixed_step": ("decode rows differ when a prefill shares the step", "long-prefill"),
    "overlap": ("decode rows differ when two requests of different ages meet", "arrivals"),
    "late_prefill": ("a prompt's row differs if two or more decode in its step", "jitter"),
    "resumed": ("a preempted request goes on with other numbers", "pressure"),
    "aborted_page": ("an aborted prompt counts as cached although it was never computed to its end", "abort-storm"),
    "bucket": ("prompts of more than 37 tokens are prefilled by another kernel", "sweep"),
    "unseeded_draws": ("requests without a seed take noise from their neighbours with one", "sampled"),
    "old_weights": ("prefixes of the weights before an update are still found", "update"),
    "restarted": ("each start rounds otherwise", "restart"),
    "abort_frees_others": ("an abort gives back a page of another request", "aborts"),
    "stale_page": ("a cached page is handed out again and overwritten", "warm-prefix"),
    "decoded_page": ("pages that decode filled are read back differently", "warm-decode"),
    "match_one_more": ("a match takes one page more than it has", "branches"),
    "log_softmax": ("decode takes log(softmax), prefill log_softmax", "rescoring"),
    "prefill_sum": ("the last row of a prefill is computed differently", "continued"),
    "chunk_cut": ("the first row after a chunk's cut is computed differently", "chunks"),
    "page_edge": ("a prompt that ends on a page's edge gets another row", "lengths"),
    "seed_by_slot": ("the noise depends on the place in the batch", "sampled"),
    "stream_by_count": ("sample streams are numbered over all requests", "samples"),
    "six_digits": ("logprobs are printed with six digits", "number-format"),
    "echo_rounds": ("/v1/completions sends half-precision logprobs", "echo"),
    "stream_drops": ("a stream leaves out its third token", "streams"),
    "every_fifth": ("every fifth request is a little off", "repeats"),
    "late_window": ("decode reads a page too few once its window has passed the prompt", "window-turns"),
    "stale_taps": ("the first rows after a cached prefix see another request's last inputs", "edges"),
    "sibling": ("a branch takes over the state of another one that is decoded beside it", "conversations"),
    "resumed_late": ("a preempted request that is past its window goes on with other numbers", "storm"),
    "evicted_hit": ("a prefix whose pages were given away is still found", "evictions"),
    "host_copy": ("what comes back from the second tier isn't what was stored", "second-tier"),
    "after_temperature": ("logprobs of sampled tokens are taken after temperature", "sampled"),
    "greedy_draws": ("a greedy request draws while a sampled one is in its batch", "mixture"),
    "two_scores": ("the scores of a prompt are off while another one is scored", "mixture"),
    "unfinished_page": ("a prompt takes over pages that an equal one beside it hasn't filled yet", "twins"),
    "page_hash": ("a cached page is found by its own ids, whatever stands before it", "transplants"),
    "long_neighbour": ("rows differ beside a request of more than 70 tokens", "conversations"),
    "after_flush": ("the first request after a flush reads memory that isn't cleared", "repeats"),
    "top_one": ("logprobs are computed otherwise where only one is asked for", "mixture"),
    "late_stop": ("a stop is noticed a step late if two or more decode", "stops"),
    "stale_slot": ("who comes after a request that was hung up on gets its state", "aborts"),
    "every_64": ("a cached prompt of 64, 128, ... tokens reads its first page once more", "lengths"),
    "seed_of_samples": ("the seed is ignored where several samples are drawn", "samples"),
    "cached_count": ("cached_tokens says a page too many", "warm-prefix"),
}


@dataclass(frozen=True, slots=True)
class At:
    """Where and when a row is computed."""

    position: int
    slot: int
    """In the batch."""
    decodes: int
    """Requests that decode in this step."""
    ages: int
    """How many different lengths their outputs have."""
    decoding: bool
    mixed: bool
    """Not all of the step is decoding."""
    first_of_chunk: bool
    """Not of the first one."""


WRONG_ROWS: dict[str, Callable[[Any, Any, At], bool]] = {
    # of the engine, the request and where: is this row a little off?
    "batch_size": lambda engine, request, at: at.decoding and at.decodes > 2,
    "padding_row": lambda engine, request, at: at.decoding and at.decodes & (at.decodes - 1) != 0,
    "slot": lambda engine, request, at: at.decoding and 0 < at.slot < at.decodes - 1,
    "mixed_step": lambda engine, request, at: at.decoding and at.mixed,
    "late_prefill": lambda engine, request, at: not at.decoding and at.decodes >= 2,
    "resumed": lambda engine, request, at: request.preempted,
    "overlap": lambda engine, request, at: at.decoding and at.ages > 1,
    "chunk_cut": lambda engine, request, at: at.first_of_chunk,
    "page_edge": lambda engine, request, at: ends_prompt(request, at) and (at.position + 1) % engine.page == 0,
    "prefill_sum": lambda engine, request, at: ends_prompt(request, at),
    "bucket": lambda engine, request, at: not at.decoding and len(request.prompt) > 37,
    "restarted": lambda engine, request, at: engine.starts > 1,
    "every_fifth": lambda engine, request, at: request.number % 5 == 0,
    "late_window": lambda engine, request, at: at.decoding and at.position - len(request.prompt) >= WINDOW,
    "stale_taps": lambda engine, request, at: (
        not at.decoding and 0 < request.cached <= at.position < request.cached + TAPS - 1
    ),
    "resumed_late": lambda engine, request, at: request.preempted and at.position - len(request.prompt) >= WINDOW,
    "two_scores": lambda engine, request, at: (
        at.position < len(request.prompt) - 1
        and any(other is not request and other.score_from >= 0 and not other.output for other in engine.waiting)
    ),
    "after_flush": lambda engine, request, at: request.stale and at.position <= len(request.prompt),
    "top_one": lambda engine, request, at: request.top == 1,
    "long_neighbour": lambda engine, request, at: any(
        other is not request and other.pages and len(other.known) > 70 for other in engine.waiting
    ),
    "stale_slot": lambda engine, request, at: request.stale and at.position < len(request.prompt) + 2,
    "sibling": lambda engine, request, at: (
        at.decoding
        and any(
            other.decoding and other.number < request.number and other.pages[:1] == request.pages[:1]
            for other in engine.waiting
        )
    ),
}


def ends_prompt(request: Any, at: At) -> bool:
    return not at.decoding and at.position == len(request.prompt) - 1
