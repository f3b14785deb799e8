"""The serving benchmark: what it sends, what it counts, and what it says of a server that fails."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner

from tests.http.live import live
from zerokl.bench.load import Load, requests_of
from zerokl.bench.plot import cumulative
from zerokl.bench.serve import Client, Stream, hear, milliseconds, serve, summary
from zerokl.cli.bench import bench
from zerokl.errors import CallerError


@pytest.fixture(scope="module")
def url():
    with live() as running:
        yield running.url


def test_every_request_is_answered_and_its_tokens_are_counted_by_the_server(url):
    load = Load(requests=12, input_tokens=20, output_tokens=9, shape="fixed", ids=200)
    seconds, streams = asyncio.run(serve(load, Client(url, concurrency=5)))
    found = summary(seconds, streams)
    assert [stream.error for stream in streams] == [""] * 12
    assert found["input_tokens"] == 12 * 20
    assert found["output_tokens"] == sum(stream.output_tokens for stream in streams) <= 12 * 9
    for stream in streams:
        assert 0 <= stream.sent <= stream.pieces[0] <= stream.pieces[-1] <= stream.ended <= seconds
    assert found["ms"]["time_to_first_token"]["p50"] > 0


def test_no_more_requests_run_at_a_time_than_allowed(url):
    load = Load(requests=9, input_tokens=5, output_tokens=9, shape="fixed", ids=200)
    _, streams = asyncio.run(serve(load, Client(url, concurrency=2)))
    at_once = [sum(other.sent <= stream.sent < other.ended for other in streams) for stream in streams]
    assert max(at_once) <= 2


def test_a_request_that_fails_is_counted_and_told_and_fails_the_command(url, tmp_path):
    arguments = ["--requests", "3", "--input-tokens", "4", "--extra", '{"temperature": -1}']
    result = CliRunner().invoke(bench, ["serve", url, *arguments, "--json", str(tmp_path / "figures.json")])
    assert result.exit_code == 1
    assert "3 failed" in result.output
    assert "first failure: 4" in result.output
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert kept["failed"] == 3
    assert kept["output_tokens"] == 0


def test_the_command_prints_a_table_and_draws_a_plot(url, tmp_path):
    plot = tmp_path / "plot.svg"
    arguments = ["--requests", "6", "--input-tokens", "12", "--output-tokens", "8", "--ids", "200"]
    result = CliRunner().invoke(bench, ["serve", url, *arguments, "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    assert "6 requests" in result.output
    assert "time to first token" in result.output
    assert plot.read_text().count("<polyline") == 2


def test_a_server_that_is_not_there_is_one_sentence():
    with pytest.raises(CallerError, match="no model at /v1/models"):
        asyncio.run(serve(Load(requests=1), Client("http://127.0.0.1:9")))


def test_quantiles_are_of_the_times_themselves():
    found = milliseconds([n / 1000 for n in range(1, 101)])
    assert found == {"mean": 50.5, "p50": 51.0, "p90": 91.0, "p95": 96.0, "p99": 100.0, "max": 100.0}
    assert milliseconds([]) == {}


def test_failed_streams_are_in_no_figure():
    good = Stream(sent=1.0, pieces=[2.0, 2.5, 3.0], ended=3.0, input_tokens=7, output_tokens=3)
    found = summary(4.0, [good, Stream(sent=0.0, ended=100.0, error="500: no")])
    assert (found["requests"], found["failed"], found["input_tokens"]) == (2, 1, 7)
    assert found["ms"]["whole_request"]["max"] == 2000.0
    assert found["ms"]["time_per_output_token"]["mean"] == 500.0
    assert found["ms"]["between_pieces"]["max"] == 500.0


def test_events_are_heard_and_everything_else_is_passed_over():
    stream = Stream()
    for line in (
        "",
        ": ping",
        'data: {"choices": [{"text": ""}]}',
        'data: {"choices": [{"text": "a"}]}',
        'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}',
        "data: [DONE]",
    ):
        hear(stream, line, 1.5)
    assert (stream.pieces, stream.input_tokens, stream.output_tokens) == ([1.5], 4, 2)


def test_a_stream_whose_ids_mean_nothing_ends_all_the_same():
    stream = Stream()
    hear(stream, 'data: {"choices": [{"text": "", "finish_reason": null}]}', 1.0)
    hear(stream, 'data: {"choices": [{"text": "", "finish_reason": "length"}]}', 2.0)
    assert stream.pieces == [2.0]
    hear(stream, 'data: {"choices": [{"text": "", "finish_reason": "length"}]}', 3.0)
    assert stream.pieces == [2.0], "an empty last piece is none, where there was one"


def test_one_seed_gives_one_load_and_lengths_follow_their_shape():
    load = Load(requests=400, input_tokens=100, output_tokens=10, shape="random", ids=1000, rate=50.0)
    asked = requests_of(load)
    assert asked == requests_of(load)
    assert {50, 150} <= {len(one.prompt) for one in asked} <= set(range(50, 151))
    assert [one.at for one in asked] == sorted(one.at for one in asked)
    assert 4 < asked[-1].at < 16, "400 requests at 50 a second take about 8 s"
    chat = sorted(len(one.prompt) for one in requests_of(Load(requests=400, input_tokens=100, shape="chat", ids=1000)))
    assert 70 < chat[200] < 140
    assert chat[-1] > 500
    assert {len(one.prompt.split()) for one in requests_of(Load(requests=5, input_tokens=33, shape="fixed"))} == {33}


def test_prompts_begin_alike_as_far_as_asked():
    load = Load(requests=3, input_tokens=100, shape="fixed", ids=10**6, shared=0.75)
    first, second, _ = (one.prompt for one in requests_of(load))
    assert first[:75] == second[:75]
    assert first[75:] != second[75:]


def test_a_plot_survives_one_point_and_none():
    assert "<polyline" in cumulative({"a": [3.0]}, "one")
    assert "<polyline" not in cumulative({"a": []}, "none")
