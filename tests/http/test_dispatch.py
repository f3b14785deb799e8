"""Routes, methods, headers, errors, keys: what is the same whichever handler answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http.live import Live, live
from tests.http.raw import connect
from zerokl.server.auth import Access
from zerokl.server.routes import ROUTES

GREEDY = {"temperature": 0, "max_new_tokens": 3}


@pytest.fixture(scope="module")
def keyed(frontend: str) -> Iterator[Live]:
    """With two user keys and an admin key. /health is open, so it starts like any other."""
    with live(api_key=("user-key", "other-key"), admin_api_key="admin-key") as running:
        yield running


@pytest.fixture(scope="module")
def user_only(frontend: str) -> Iterator[Live]:
    with live(api_key=("user-key",)) as running:
        yield running


def test_an_unknown_route_is_404_in_our_form(server: Live) -> None:
    response = server.client.get("/nope")
    assert response.status_code == 404
    assert response.content == (
        b'{"error":{"message":"no route \\"/nope\\"","type":"invalid_request_error","param":null,"code":"not_found"}}'
    )


@pytest.mark.parametrize("path", ["/generate/", "/health/", "/v1/models/", "/v1/completions/"])
def test_a_trailing_slash_is_another_route_and_no_redirect(server: Live, path: str) -> None:
    assert server.client.get(path).status_code == 404


@pytest.mark.parametrize(("method", "path"), [("GET", "/generate"), ("POST", "/health"), ("DELETE", "/v1/models")])
def test_another_method_is_405_in_our_form_and_names_the_allowed(server: Live, method: str, path: str) -> None:
    response = server.client.request(method, path)
    assert response.status_code == 405
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.headers["allow"]


def test_head_works_on_probes_alone(server: Live) -> None:
    for route in ROUTES:
        status = server.client.head(route.path).status_code
        assert status == (200 if "HEAD" in route.methods else 405), route.path


def test_no_answer_names_the_server_software(server: Live) -> None:
    assert "server" not in server.client.get("/version").headers


def test_every_answer_has_a_request_id_and_the_fingerprint(server: Live) -> None:
    for path in ("/version", "/nope", "/generate"):
        headers = server.client.get(path).headers
        assert headers["x-request-id"] == "0" * 32
        assert headers["x-zerokl-fingerprint"] == "fake"
    headers = server.client.get("/version", headers={"x-request-id": "mine"}).headers
    assert headers["x-request-id"] == "mine"


def test_a_body_is_json_whatever_its_content_type(server: Live) -> None:
    body = b'{"text":"ab","sampling_params":{"temperature":0,"max_new_tokens":3}}'
    for kind in ("application/x-www-form-urlencoded", "text/plain", ""):
        response = server.client.post("/generate", content=body, headers={"content-type": kind})
        assert response.json()["text"] == "xyz"


def test_a_body_past_the_limit_is_413_said_or_unsaid() -> None:
    with live(max_body_bytes=2000) as server:
        response = server.client.post("/generate", content=b"x" * 2001)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
        assert response.json()["error"]["message"] == "request body is larger than the limit of 2000 bytes"
        response = server.client.post("/generate", content=iter([b"x" * 1500] * 2))
        assert response.status_code == 413
        assert server.client.post("/generate", content=b"x" * 2000).status_code == 400
        assert server.client.get("/health").status_code == 200


def test_a_body_of_seven_megabytes_of_ids_is_taken(server: Live) -> None:
    response = server.post("/generate", {"input_ids": [[100] * 40_000] * 48})
    assert response.status_code == 400
    assert "the prompt has 40000 tokens" in response.json()["error"]["message"]


def test_a_server_without_keys_asks_for_none(server: Live) -> None:
    assert server.client.get("/server_info", headers={"authorization": "Bearer whatever"}).status_code == 200


def test_open_routes_need_no_key(keyed: Live) -> None:
    for route in ROUTES:
        if route.access is Access.OPEN:
            assert keyed.client.get(route.path).status_code == 200, route.path


def test_user_routes_need_a_key(keyed: Live) -> None:
    response = keyed.client.get("/v1/models")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["type"] == "authentication_error"
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "no API key given" in response.json()["error"]["message"]
    assert keyed.client.get("/nope").status_code == 401


@pytest.mark.parametrize("value", ["Bearer user-key", "bearer other-key", "BEARER  user-key", "Bearer admin-key"])
def test_a_key_is_taken_whatever_the_case_of_the_scheme(keyed: Live, value: str) -> None:
    assert keyed.client.get("/v1/models", headers={"authorization": value}).status_code == 200


@pytest.mark.parametrize("value", ["Bearer wrong", "Bearer user-ke", "Bearer user-key2", "Basic user-key", "user-key"])
def test_another_key_is_refused(keyed: Live, value: str) -> None:
    assert keyed.client.get("/v1/models", headers={"authorization": value}).status_code == 401


def test_admin_routes_need_the_admin_key_if_there_is_one(keyed: Live) -> None:
    def flush(key: str) -> int:
        return keyed.client.get("/flush_cache", headers={"authorization": f"Bearer {key}"}).status_code

    assert flush("admin-key") == 200
    assert flush("user-key") == 403
    assert flush("wrong") == 401


def test_admin_routes_take_the_api_key_if_there_is_no_admin_key(user_only: Live) -> None:
    assert user_only.client.get("/flush_cache").status_code == 401
    headers = {"authorization": "Bearer user-key"}
    assert user_only.client.get("/flush_cache", headers=headers).status_code == 200


def test_cross_origin_headers_are_off_by_default(server: Live) -> None:
    headers = server.client.get("/health", headers={"origin": "https://a.example"}).headers
    assert "access-control-allow-origin" not in headers
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert server.client.options("/generate", headers=preflight).status_code == 405


def test_cross_origin_headers_for_the_origins_allowed() -> None:
    with live(allow_origins=("https://a.example",), api_key=("k",)) as server:
        preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
        response = server.client.options("/generate", headers=preflight)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://a.example"
        assert "POST" in response.headers["access-control-allow-methods"]
        other = server.client.get("/health", headers={"origin": "https://b.example"}).headers
        assert "access-control-allow-origin" not in other


def test_a_strict_server_knows_its_model_alone() -> None:
    with live(strict_model=True) as server:
        body = {"prompt": "a", "max_tokens": 1}
        assert server.post("/v1/completions", {**body, "model": "toy"}).status_code == 200
        assert server.post("/v1/completions", body).status_code == 200
        response = server.post("/v1/completions", {**body, "model": "gpt"})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"


def test_requests_on_one_connection_one_after_the_other(server: Live) -> None:
    raw = connect(server.url)
    for _ in range(3):
        raw.send("GET", "/version")
        raw.read_head()
        assert raw.status == 200
        assert raw.read_body() == b'{"version":"0.1.0"}'
        raw.data = b""
    raw.close()
