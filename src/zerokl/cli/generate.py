"""`zerokl generate`: one prompt, its text as it comes. In this process, or from a server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from zerokl.cli.options import config_of, config_options
from zerokl.cli.process import set_up_logs

SERVER_OPTIONS = (
    "host",
    "port",
    "frontend",
    "admin_api_key",
    "api_key",
    "allow_origins",
    "max_body_bytes",
    "max_logprobs",
    "strict_model",
    "incremental_streaming_output",
    "weight_version",
    "served_model_name",
    "max_queued_requests",
    "test_clock",
    "log_level",
)


@click.command()
@click.argument("prompt", required=False)
@click.option("--url", help="Ask this server instead of running the model here.")
@click.option("--api-key", default="", help="Key for --url.")
@click.option(
    "--max-new-tokens", default=256, show_default=True, type=click.IntRange(1), help="Most tokens to generate."
)
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0), help="0: the likeliest token.")
@click.option("--seed", type=int, help="Seed of the noise, for temperatures above 0.")
@click.option("--raw", is_flag=True, help="The prompt as it is, without the model's chat template.")
@click.option("--log-level", default="warning", show_default=True, help="Log level.")
@config_options(*SERVER_OPTIONS)
def generate(prompt: str | None, url: str | None, api_key: str, log_level: str, **values: Any) -> None:
    """Generate text that follows PROMPT (default: standard input), token by token."""
    set_up_logs("zerokl", log_level)
    text = prompt if prompt is not None else sys.stdin.read()
    began = time.perf_counter()
    pieces = from_server(url, api_key, text, values) if url else from_model(text, values)
    count = show(pieces)
    seconds = time.perf_counter() - began
    click.echo(f"{count} pieces in {seconds:.2f} s", err=True)


def show(pieces: Iterator[str]) -> int:
    """Print each piece at once; how many there were."""
    count = 0
    for piece in pieces:
        count += 1
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return count


def from_server(url: str, api_key: str, prompt: str, values: dict[str, Any]) -> Iterator[str]:
    """Through /v1, chat if the server's model has a template."""
    import httpx
    import orjson

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    body: dict[str, Any] = {
        "stream": True,
        "temperature": values["temperature"],
        "max_tokens": values["max_new_tokens"],
        "seed": values["seed"],
    }
    with httpx.Client(base_url=url, headers=headers, timeout=None) as client:
        try:
            chat = not values["raw"] and client.get("/tokenizer_info").json().get("chat_template")
            path = "/v1/chat/completions" if chat else "/v1/completions"
            body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
            with client.stream("POST", path, json=body) as answer:
                if answer.status_code != 200:
                    raise click.ClickException(orjson.loads(answer.read())["error"]["message"])
                yield from texts_of(answer.iter_lines())
        except httpx.TransportError as error:
            raise click.ClickException(f"{url}: {error}") from error


def texts_of(lines: Iterator[str]) -> Iterator[str]:
    """The text of each chunk of a stream. Raises ClickException for an error frame."""
    import orjson

    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = orjson.loads(line.removeprefix("data: "))
        if "error" in chunk:
            raise click.ClickException(chunk["error"]["message"])
        for choice in chunk["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content")
            if text:
                yield text


def from_model(prompt: str, values: dict[str, Any]) -> Iterator[str]:
    """In this process, with the same engine that a server runs."""
    from zerokl.llm import LLM

    llm = LLM.from_config(config_of(values))
    yield from llm.stream(
        prompt,
        chat=not values["raw"] and llm.has_chat_template,
        max_new_tokens=values["max_new_tokens"],
        temperature=values["temperature"],
        seed=values["seed"],
    )
