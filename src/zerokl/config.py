"""One frozen config. The flags of `zerokl serve`, their help, the docs table and the fingerprint derive from it.

A field is an option: `field_name` is `--field-name`. `bits=True` marks what can move an output bit; those fields, and
no others, enter the fingerprint. What the machine answers (free memory, threads) goes into `Resolved`, made once.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def option(
    default: Any,
    help: str,
    *,
    bits: bool = False,
    choices: Sequence[str] | None = None,
    aliases: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
) -> Any:
    """A config field: default, help for people, and whether it can move an output bit."""
    metadata = {
        "help": help,
        "bits": bits,
        "choices": tuple(choices) if choices else None,
        "aliases": tuple(aliases),
        "minimum": minimum,
        "maximum": maximum,
        "secret": secret,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every option of a server or an `LLM`."""

    # Model
    model: str = option("", "Folder, GGUF file or hub id; empty: SmolLM2-135M-Instruct.", aliases=["--model-path"])
    tokenizer_path: str = option("", "Tokenizer folder, if not the model's own.")
    revision: str = option("", "Hub revision.")
    served_model_name: str = option("", "Name in answers; empty: the model as given.")
    dtype: str = option(
        "auto",
        "Weights' type in memory. auto: as stored, quantised weights packed.",
        bits=True,
        choices=["auto", "float32", "float16", "bfloat16"],
    )
    quantization: str = option(
        "",
        "Insist that the checkpoint is quantised so; it says itself how, a contradiction is an error.",
        choices=["", "modelopt", "modelopt_fp4", "modelopt_fp8", "compressed-tensors", "fp8", "gguf"],
    )
    load_format: str = option("auto", "How weights are found.", choices=["auto", "safetensors", "gguf", "dummy"])
    context_length: int | None = option(None, "Lower the model's own context length.", minimum=1)
    chat_template: str = option("", "Path of a Jinja file that replaces the model's template.", bits=True)

    # Numerics
    cpu_numerics: str = option(
        "exact",
        "exact: float32 activations. integer: with GGUF's block types rounded to int8 per token and 32. sm90: the bits "
        "of an H100 or H200, slowly: to repeat and debug what a GPU said.",
        bits=True,
        choices=["exact", "integer", "sm90"],
    )
    random_seed: int | str = option(
        0,
        "Seed for requests that bring none, mixed with their prompt; 'random' draws one at start.",
        bits=True,
        aliases=["--default-seed"],
    )
    logprobs_mode: str = option(
        "raw",
        "raw: log-softmax of the raw logits. processed: the sampler's own distribution.",
        bits=True,
        choices=["raw", "processed"],
    )
    sampling_defaults: str = option(
        "model",
        "Where unset sampling parameters come from: the model's generation_config.json, or OpenAI's defaults.",
        bits=True,
        choices=["model", "openai"],
    )
    kv_cache_dtype: str = option(
        "auto",
        "How keys and values are kept. auto: float32 on the CPU, bfloat16 on the GPU; fp8_e4m3: with static scales.",
        bits=True,
        choices=["auto", "float32", "bfloat16", "bf16", "fp8_e4m3"],
    )
    tp_leaves: int | None = option(
        None,
        "Leaves of the sums that ranks share, a power of two; default: as many as ranks, or 1. Any --tp up to it gives "
        "the same bits.",
        bits=True,
        minimum=1,
        maximum=64,
    )

    # Memory and scheduling: none of these moves a bit
    page_size: int = option(64, "Token slots per cache page.", minimum=1, maximum=1024)
    max_total_tokens: int | None = option(None, "Token slots of the cache pool.", minimum=1)
    mem_fraction_static: float | None = option(
        None, "Share of device memory for weights and cache; default on the GPU: 0.85.", minimum=0.05, maximum=0.99
    )
    max_running_requests: int = option(256, "Requests in one step.", minimum=1)
    max_queued_requests: int = option(1024, "Requests waiting before a 429.", minimum=0, aliases=["--max-queued"])
    chunked_prefill_size: int | None = option(
        None, "Token budget of one step; default: 512 on the CPU, 8192 on the GPU.", minimum=1
    )
    disable_radix_cache: bool = option(False, "Never reuse a prefix.")
    enable_hierarchical_cache: bool = option(False, "Keep what the cache evicts in a second, larger pool (CPU).")
    hicache_ratio: float = option(2.0, "Size of that pool, in sizes of the first.", minimum=0.1, maximum=100)
    threads: int | None = option(None, "CPU threads; default: all cores this process may use.", minimum=1)
    tp: int = option(
        1,
        "Ranks that share the model, a power of two; each is a process.",
        aliases=["--tp-size", "--tensor-parallel-size"],
        minimum=1,
        maximum=64,
    )
    distributed_executor_backend: str = option(
        "mp",
        "Who starts the ranks: this process (mp), or torchrun, on one machine or several (external_launcher).",
        choices=["mp", "external_launcher"],
    )
    device: str = option("cpu", "Where the model runs.", choices=["cpu", "cuda"])
    disable_cuda_graph: bool = option(False, "Run decode steps eagerly (GPU).")
    disable_prefill_cuda_graph: bool = option(False, "Run prefill steps eagerly (GPU).")
    cuda_graph_bs: str = option("", "Token buckets to capture, as 1,8,64; empty: all (GPU).")

    # Server
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(30000, "Port to listen on.", minimum=0, maximum=65535)
    frontend: str = option(
        "auto",
        "HTTP frontend; both: Python's on the port, Rust's on the next. auto: python, unless ZEROKL_RUST_SERVER.",
        choices=["auto", "python", "rust", "both"],
    )
    frontend_threads: int | None = option(
        None, "Threads of the Rust frontend that answer requests; default: 1.", minimum=1, maximum=256
    )
    api_key: tuple[str, ...] = option((), "Key that clients must send (repeatable).", secret=True)
    admin_api_key: str = option("", "Key for admin routes.", secret=True)
    allow_origins: tuple[str, ...] = option((), "CORS origins (repeatable); none: CORS is off.")
    max_body_bytes: int = option(64 * 2**20, "Largest request body.", minimum=1024)
    max_logprobs: int = option(100, "Largest `logprobs` on /v1/completions.", minimum=0)
    disable_playground: bool = option(False, "Serve no page at /.")
    otlp_traces_endpoint: str = option("", "OTLP/HTTP URL for OpenTelemetry traces; needs zerokl[otel].")
    watchdog_timeout: float = option(300.0, "Seconds of one step after which /health is 503.", minimum=1)
    tool_call_parser: str = option(
        "",
        "How the model writes tool calls; empty: they stay in the content.",
        choices=["", "hermes", "qwen25", "llama3", "mistral"],
    )
    strict_model: bool = option(False, "Answer 404 to a model name that isn't the served one.")
    incremental_streaming_output: bool = option(False, "/generate streams deltas instead of the whole text so far.")
    weight_version: str = option("default", "Label of the weights in answers.")
    log_level: str = option("info", "Log level.", choices=["debug", "info", "warning", "error"])
    test_clock: int | None = option(None, "Freeze clocks and ids at this Unix time, for byte-exact tests.")


ENVIRONMENT = {
    "ZEROKL_CACHE": "Folder for downloads and digests; unset: zerokl in XDG_CACHE_HOME.",
    "XDG_CACHE_HOME": "Folder of caches; unset: ~/.cache.",
    "ZEROKL_RUST_SERVER": "1, on, yes or true: the HTTP frontend is Rust's, unless --frontend says otherwise.",
    "HF_HUB_OFFLINE": "1, on, yes or true: the hub is never asked.",
    "ZEROKL_STEP_NOTES": "File to which engines append what each step ran; set by zerokl suite --repeat.",
}
"""The environment variables that are read, all of them. None moves a bit."""


def environment(name: str) -> str:
    """An environment variable that is declared here; "" if it is unset."""
    if name not in ENVIRONMENT:
        raise KeyError(f"{name} is not among the declared environment variables")
    return os.environ.get(name, "")


def num_leaves(config: Config) -> int:
    """In how many leaves sums are cut: as the option says, or one for each rank."""
    return config.tp if config.tp_leaves is None else config.tp_leaves


def chosen_frontend(config: Config) -> str:
    """auto: Python's, or Rust's where SGLang's variable for its own asks for it."""
    if config.frontend != "auto":
        return config.frontend
    return "rust" if environment("ZEROKL_RUST_SERVER") in ("1", "true", "yes", "on") else "python"


def options() -> tuple[dataclasses.Field[Any], ...]:
    """The fields of `Config`, in the order of the help page."""
    return dataclasses.fields(Config)
