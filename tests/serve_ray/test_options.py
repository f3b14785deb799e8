"""What `serve run` is told, and what Ray's router is shown of a request."""

from __future__ import annotations

import pytest

from zerokl.errors import ConfigError
from zerokl.serve_ray.asked import asked, prompt_of
from zerokl.serve_ray.options import deployed


def test_words_become_a_servers_flags_and_numbers_of_replicas():
    given = deployed({"model": "folder", "tp": "2", "device": "cuda", "disable_radix_cache": "true", "replicas": "1-4"})
    assert given.flags == ("--model", "folder", "--tp", "2", "--device", "cuda", "--disable-radix-cache")
    assert (given.least, given.most, given.gpus, given.config.tp) == (1, 4, 2, 2)
    assert deployed({"model": "folder", "strict_model": False, "replicas": 3}).flags == ("--model", "folder")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"modle": "x"}, "No such option.*--modle"),
        ({"tp": "many"}, "Invalid value for '--tp'"),
        ({"replicas": "0"}, "replicas=0: a whole number above 0"),
        ({"replicas": "4-2"}, "replicas=4-2: the least is above the most"),
        ({"requests_per_replica": "x"}, "requests_per_replica=x: a whole number"),
    ],
)
def test_what_no_server_has_is_one_clear_error(options, said):
    with pytest.raises(ConfigError, match=said):
        deployed(options)


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        (b'{"prompt": "once upon"}', "once upon"),
        (b'{"text": ["a", "b"]}', "ab"),
        (b'{"input_ids": [[1, 23], [4]]}', "1 23 4 "),
        (b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "user: : \n\n"),
        (
            b'{"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]}',
            "system: be\nuser: hi\n",
        ),
        (b"", ""),
        (b"not json", ""),
        (b"[1]", ""),
        (b'{"model": "x"}', ""),
    ],
)
def test_the_router_sees_prompts_whose_prefixes_are_the_requests(body, prompt):
    assert prompt_of(body) == prompt


def test_headers_of_one_connection_do_not_travel_and_a_request_without_prompt_has_its_path():
    one = asked("POST", "/generate?x=1", [("Host", "a"), ("Content-Length", "2"), ("X-Request-Id", "7")], b"{}")
    assert one.headers == (("X-Request-Id", "7"),)
    assert (one.target, one.prompt) == ("/generate?x=1", "/generate?x=1")
