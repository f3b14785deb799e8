"""The page at /: one file that loads nothing else, and what it shows in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.browser import CHROMIUM, Browser, browser
from tests.http.live import Live, live, wait_until


def test_it_is_one_page_that_may_load_nothing_from_elsewhere(server: Live) -> None:
    response = server.client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert not re.search(r"https?://|src=|@import|url\(", response.text)


def test_it_is_open_and_a_flag_turns_it_off() -> None:
    with live(api_key=("secret",)) as keyed:
        assert keyed.client.get("/").status_code == 200
    with live(disable_playground=True) as bare:
        response = bare.client.get("/")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "not_found"


# ---- in a browser

in_browser = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]


@pytest.fixture(scope="module")
def tab(frontend: str) -> Iterator[Browser]:
    with browser() as window:
        yield window


def element(name: str) -> str:
    return f"document.getElementById('{name}')"


def generate(tab: Browser, **values: Any) -> None:
    """Fill the form in, press the button, wait for the end."""
    for name, value in values.items():
        kind = "checked" if isinstance(value, bool) else "value"
        tab.run(f"{element(name)}.{kind} = {'true' if value is True else repr(str(value))}")
    tab.run(f"{element('go')}.click()")
    wait_until(lambda: "ended by" in tab.run(f"{element('status')}.textContent"))


def shown(tab: Browser) -> list[dict[str, Any]]:
    tokens: list[dict[str, Any]] = tab.run("shown")
    return tokens


@pytest.mark.usefixtures("tab")
class TestInBrowser:
    pytestmark = in_browser

    def test_tokens_are_shown_with_the_servers_logprobs(self, tab: Browser, server: Live) -> None:
        tab.open(server.url)
        generate(tab, prompt="ab", length=3, temperature=0)
        assert tab.run(f"{element('tokens')}.textContent") == "xyz"
        body = server.generate(text="ab", return_logprob=True, sampling_params={"max_new_tokens": 3, "temperature": 0})
        own = [entry[0] for entry in body["meta_info"]["output_token_logprobs"]]
        assert [one["logprob"] for one in shown(tab)] == own
        shades = tab.run(
            "[...document.querySelectorAll('.token')].map(one => one.style.getPropertyValue('--surprise'))"
        )
        assert [float(shade) for shade in shades] == [round(-logprob / 6, 3) for logprob in own]
        assert tab.complaints == []

    def test_run_twice_it_says_that_the_bits_are_the_same(self, tab: Browser, server: Live) -> None:
        tab.open(server.url)
        generate(tab, prompt="ab", length=3, temperature=0)
        tab.run(f"{element('status')}.textContent = ''")
        generate(tab)
        assert "The same bits as last time: 3 of 3" in tab.run(f"{element('status')}.textContent")

    def test_the_prompt_is_scored_as_well_if_asked(self, tab: Browser, server: Live) -> None:
        tab.open(server.url)
        generate(tab, prompt="hello", length=2, temperature=0, given=True)
        assert [bool(one.get("given")) for one in shown(tab)] == [True] * 5 + [False] * 2
        assert shown(tab)[0]["logprob"] is None

    def test_a_tokens_card_lists_alternatives_and_one_of_them_is_followed(self, tab: Browser, server: Live) -> None:
        tab.open(server.url)
        generate(tab, prompt="q", length=6, temperature=0)
        first = shown(tab)
        tab.run("pick(2)")
        assert tab.run("document.querySelectorAll('#card .option').length") == 8
        chosen = first[2]["top"][3]
        tab.run(f"{element('status')}.textContent = ''")
        tab.run("document.querySelectorAll('#card .option')[3].click()")
        wait_until(lambda: "ended by" in tab.run(f"{element('status')}.textContent"))
        ids = [one["id"] for one in shown(tab)]
        assert ids[:3] == [first[0]["id"], first[1]["id"], chosen[1]]
        assert len(ids) == 6

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("width", [320, 390, 800, 1600])
    def test_nothing_sticks_out_and_the_card_is_in_sight(
        self, tab: Browser, server: Live, width: int, scheme: str
    ) -> None:
        tab.resize(width, 700)
        tab.scheme(scheme)
        tab.open(server.url)
        generate(tab, prompt="q" * 30, length=80, temperature=0)
        tab.run("pick(60)")
        assert tab.run("document.documentElement.scrollWidth") <= width
        box = tab.run("document.getElementById('card').getBoundingClientRect().toJSON()")
        assert box["left"] >= 0
        assert box["right"] <= width
        assert box["bottom"] <= 700
        token = tab.run("document.querySelector('.picked').getBoundingClientRect().toJSON()")
        assert token["bottom"] <= box["top"] + 1 or token["top"] >= box["bottom"] - 1
        paper = tab.run("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(19, 20, 23)") == (scheme == "dark")

    def test_an_error_is_shown_and_a_key_is_asked_for(self, tab: Browser) -> None:
        with live(api_key=("secret",)) as keyed:
            tab.open(keyed.url)
            tab.run(f"{element('go')}.click()")
            wait_until(lambda: "no API key" in tab.run(f"{element('error')}.textContent"))
            assert tab.run(f"{element('key-row')}.hidden") is False
            generate(tab, key="secret", length=1)
            assert len(shown(tab)) == 1
        tab.complaints.clear()
