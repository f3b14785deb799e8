"""Cases of everything else: JSON itself, routes, methods, headers, keys, and the smaller routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.http.parity.exchanges import Case

PARAMS = b'"sampling_params":{"temperature":0,"max_new_tokens":1}'


def raw(why: str, body: bytes, path: str = "/generate", **headers: str) -> Case:
    return Case(why, "POST", path, body, headers)


def get(why: str, path: str, method: str = "GET", **headers: str) -> Case:
    return Case(why, method, path, None, headers)


def post(why: str, path: str, **body: Any) -> Case:
    return Case(why, "POST", path, body)


def json_texts() -> Iterator[Case]:
    yield raw("nothing", b"")
    yield raw("half an object", b"{")
    yield raw("a list", b"[1,2]")
    yield raw("null", b"null")
    yield raw("a number", b"-1.50e3")
    yield raw("a text longer than errors show", b'"' + b"x" * 100 + b'"')
    yield raw("a lone surrogate", b'{"text":"\\ud800"}')
    yield raw("a pair of surrogates", b'{"text":"\\ud83d\\ude00",' + PARAMS + b"}")
    yield raw("NaN", b'{"a":NaN}')
    yield raw("Infinity", b'{"a":Infinity}')
    yield raw("a byte order mark", b"\xef\xbb\xbf{}")
    yield raw("bytes that are no UTF-8", b'{"text":"\xff"}')
    yield raw("an overlong form", b'{"text":"\xc0\xaf"}')
    yield raw("a number past all floats", b'{"text":"ab","x":1e999}')
    yield raw("an integer past all floats", b'{"text":"ab","x":1' + b"0" * 400 + b"}")
    yield raw("an integer past 64 bits", b'{"text":"ab","priority":18446744073709551616}')
    yield raw("an integer below 64 bits", b'{"text":"ab","priority":-9223372036854775809}')
    yield raw("minus zero is an integer", b'{"text":"ab","priority":-0,' + PARAMS + b"}")
    yield raw("minus zero among ids", b'{"input_ids":[-0,97],' + PARAMS + b"}")
    yield raw("minus zero shown", b'{"text":-0}')
    yield raw("minus zero as a float shown", b'{"text":-0.0}')
    yield raw("minus zero in a text stays", b'{"text":"-0 -0",' + PARAMS + b"}")
    yield raw("minus zero with an exponent", b'{"text":-0e0}')
    yield raw("a small float shown", b'{"text":0.00001}')
    yield raw("a tiny float shown", b'{"text":1e-7}')
    yield raw("a large float shown", b'{"text":1e16}')
    yield raw("a float that was an integer shown", b'{"text":100000000000000000000000}')
    yield raw("a whole float shown", b'{"text":5.0}')
    yield raw("a leading zero", b'{"text":01}')
    yield raw("a trailing comma", b'{"text":"a",}')
    yield raw("single quotes", b"{'text':'a'}")
    yield raw("two objects", b"{}{}")
    yield raw("blanks around", b' \n{"text":"ab",' + PARAMS + b"}\t\r\n")
    yield raw("a form feed is no blank", b'\x0c{"text":"ab"}')
    yield raw("a control character in a text", b'{"text":"a\nb"}')
    yield raw("DEL in a text", b'{"text":"\x7f",' + PARAMS + b"}")
    yield raw("all escapes in an error", b'{"text":{"\\b\\f\\n\\r\\t\\u001f/\\u007f\\"\\\\":1}}')
    yield raw("the last of two equal keys", b'{"text":"stop","text":"ab",' + PARAMS + b"}")
    yield raw(
        "the last of two in params",
        b'{"text":"ab","sampling_params":{"max_new_tokens":9,"max_new_tokens":1,"temperature":0}}',
    )
    yield raw("two unknown keys: the first counts", b'{"text":"ab","sampling_params":{"b":1,"a":1,"b":2}}')
    yield raw("100 levels are parsed", b'{"text":' + b"[" * 99 + b"]" * 99 + b"}")
    yield raw("101 levels are not", b'{"text":' + b"[" * 100 + b"]" * 100 + b"}")
    yield raw("deep and never closed", b"[" * 10_000)
    yield raw("closed more than opened", b"]" * 200 + b"[" * 150)
    yield raw("brackets in texts are no levels", b'{"text":"' + b"[" * 200 + b'",' + PARAMS + b"}")
    yield raw("a quote outside an escape", b'\\"' + b"[" * 150)
    yield raw("a text that never ends", b'{"text":"' + b"[" * 300)
    yield raw(
        "a form's content type", b'{"text":"ab",' + PARAMS + b"}", content_type="application/x-www-form-urlencoded"
    )
    yield raw("no content type", b'{"text":"ab",' + PARAMS + b"}", content_type="")
    yield raw("a temperature of minus zero", b'{"text":"ab","sampling_params":{"temperature":-0.0,"max_new_tokens":1}}')
    yield raw(
        "a temperature of five ulps", b'{"text":"ab","sampling_params":{"temperature":5e-324,"max_new_tokens":1}}'
    )


def routing() -> Iterator[Case]:
    yield get("an unknown route", "/nope")
    yield get("an unknown route with letters to escape", "/n%C3%B6%22p%5Ce")
    yield get("a path that is no UTF-8", "/%ff%zz")
    yield get("a trailing slash is another route", "/health/")
    yield get("a trailing slash on a list", "/v1/models/")
    yield get("an empty path's page", "/")
    yield get("the playground takes no POST", "/", method="POST")
    yield get("GET where POST is wanted", "/generate")
    yield get("PUT where POST is wanted", "/v1/completions", method="PUT")
    yield get("DELETE names what is allowed", "/flush_cache", method="DELETE")
    yield get("a method that few know", "/health", method="PROPFIND")
    yield get("PATCH of an unknown route", "/nope", method="PATCH")
    yield get("HEAD on a probe", "/health", method="HEAD")
    yield get("HEAD elsewhere", "/v1/models", method="HEAD")
    yield get("HEAD of nothing", "/nope", method="HEAD")
    yield get(
        "OPTIONS without CORS",
        "/generate",
        method="OPTIONS",
        origin="https://a.example",
        access_control_request_method="POST",
    )
    yield get("OPTIONS of nothing", "/nope", method="OPTIONS")
    yield get("an origin without CORS", "/version", origin="https://a.example")
    yield get("the client's request id", "/version", x_request_id="mine")
    yield get("a request id in Latin-1", "/version", x_request_id="caf\u00e9")
    yield get("an empty request id is none", "/version", x_request_id="")
    yield get("a key where none is asked for", "/version", authorization="Bearer x")
    yield get("a query that nobody reads", "/version?x=%ff&y")


def facts() -> Iterator[Case]:
    yield get("health", "/health")
    yield get("ping", "/ping")
    yield get("ready", "/ready")
    yield get("one real token", "/health_generate")
    yield get("the version", "/version")
    yield get("the model", "/model_info")
    yield get("the model, older name", "/get_model_info")
    yield get("the models", "/v1/models")
    yield get("one model", "/v1/models/toy")
    yield get("another model", "/v1/models/other")
    yield get("a model with slashes", "/v1/models/a/b%2Fc")
    yield get("a model named like the route", "/v1/models/%7Bid%7D")
    yield get("the tokenizer", "/tokenizer_info")
    yield get("the API's document", "/openapi.json")
    yield get("the API's page", "/docs")


def tokenizing() -> Iterator[Case]:
    for path in ("/tokenize", "/v1/tokenize"):
        yield post("a text", path, prompt="hi é我😀")
    yield post("texts", "/tokenize", prompt=["hi", "", "a"])
    yield post("no texts", "/tokenize", prompt=[])
    yield post("an empty text", "/tokenize", prompt="")
    yield post("without special tokens", "/tokenize", prompt="<s>a", add_special_tokens=False)
    yield post("messages", "/tokenize", messages=[{"role": "user", "content": "hi"}])
    yield post("messages that are none", "/tokenize", messages=[{"role": "x"}])
    yield post("no messages", "/tokenize", messages=[])
    yield post("neither", "/tokenize")
    yield post("both", "/tokenize", prompt="a", messages=[{"role": "user", "content": "hi"}])
    yield post("a number", "/tokenize", prompt=5)
    yield post("a text longer than a thread takes", "/tokenize", prompt="ab" * 12_000)
    for path in ("/detokenize", "/v1/detokenize"):
        yield post("ids", path, tokens=[104, 105])
    yield post("lists of ids", "/detokenize", tokens=[[104], [105, 0xE6]])
    yield post("no ids", "/detokenize", tokens=[])
    yield post("special ids are skipped", "/detokenize", tokens=[256, 104, 257])
    yield post("special ids are shown", "/detokenize", tokens=[256, 104, 258], skip_special_tokens=False)
    yield post("pieces of characters", "/detokenize", tokens=[0xE6, 0x88, 0x61, 0xFF, 0xF0, 0x9F, 0x98, 0x80, 0xC3])
    yield post("letters that JSON escapes", "/detokenize", tokens=[*b'\x00\x08\x0c\n\r\t\x1f/\x7f"\\'])
    yield post("ids are missing", "/detokenize")
    yield post("an id out of range", "/detokenize", tokens=[999])
    yield post("an id out of range in a list", "/detokenize", tokens=[[1], [-1]])
    yield post("an id that is a text", "/detokenize", tokens=["a"])
    yield post("a list among ids", "/detokenize", tokens=[1, [2]])


def control() -> Iterator[Case]:
    yield get("flush", "/flush_cache")
    yield get("flush by POST", "/flush_cache", method="POST")
    yield get("flush by its other name", "/reset_prefix_cache", method="POST")
    yield get("the other name takes no GET", "/reset_prefix_cache")
    yield get("flush the device tier", "/flush_cache?tier=device")
    yield get("flush another tier", "/flush_cache?tier=other&timeout=1")
    for value in ("-1", "x", "nan", "1e9", "inf", "%20", "1_0__0", "3600.5", "%e9", "%d9%a1"):
        yield get(f"a timeout of {value}", f"/flush_cache?timeout={value}")
    for value in ("", "0", "5.5", "+1", "1_0", "%201%20", "1e1", ".5"):
        yield get(f"a good timeout of {value!r}", f"/flush_cache?timeout={value}")
    yield get("the last of two timeouts", "/flush_cache?timeout=x&timeout=1")
    yield get("a name that is escaped", "/flush_cache?t%69meout=x")
    yield post("an unknown name is no error", "/abort_request", rid="unknown")
    yield post("all of nothing", "/abort_request", abort_all=True)
    yield post("neither", "/abort_request")
    yield post("an empty name", "/abort_request", rid="")
    yield post("a name that is a number", "/abort_request", rid=5)
    yield post("a flag that is a number", "/abort_request", abort_all=1)
    yield post("weights can't be changed", "/update_weights_from_disk", model_path="m")
    yield post("weights from nowhere", "/update_weights_from_disk")


def keys() -> Iterator[Case]:
    """For a server with two user keys and an admin key."""
    yield get("no key", "/v1/models")
    yield get("no key, and no route either", "/nope")
    yield get("no key, and the wrong method", "/generate")
    for value in ("Bearer user-key", "bearer other-key", "BEARER  user-key ", "Bearer admin-key"):
        yield get(f"the key of {value!r}", "/v1/models", authorization=value)
    for value in (
        "Bearer wrong",
        "Bearer user-ke",
        "Bearer user-key2",
        "Basic user-key",
        "user-key",
        "Bearer",
        "Bearer ",
        "Bearer user-key other-key",
        "Bearer caf\u00e9",
    ):
        yield get(f"no key of {value!r}", "/v1/models", authorization=value)
    yield get("an admin's route with the admin's key", "/flush_cache", authorization="Bearer admin-key")
    yield get("an admin's route with a user's key", "/flush_cache", authorization="Bearer user-key")
    yield get("an admin's route with another key", "/flush_cache", authorization="Bearer wrong")
    yield get("an admin's route without a key", "/flush_cache")
    yield get("open routes ask for none", "/health", authorization="Bearer wrong")
    yield get("the page is open", "/")
    yield get("an unknown route with a key", "/nope", authorization="Bearer user-key")


def origins() -> Iterator[Case]:
    """For a server that allows https://a.example."""
    yield get("an origin that is allowed", "/version", origin="https://a.example")
    yield get("another origin", "/version", origin="https://b.example")
    yield get("no origin", "/version")
    yield get("an error to an origin", "/nope", origin="https://a.example")
    yield get(
        "a preflight", "/generate", method="OPTIONS", origin="https://a.example", access_control_request_method="POST"
    )
    yield get(
        "a preflight of nothing",
        "/nope",
        method="OPTIONS",
        origin="https://a.example",
        access_control_request_method="POST",
    )
    yield get("OPTIONS that is no preflight", "/generate", method="OPTIONS", origin="https://a.example")


def all_cases() -> list[Case]:
    return [*json_texts(), *routing(), *facts(), *tokenizing(), *control()]
