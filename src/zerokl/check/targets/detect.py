"""Which kind of server answers at a URL: named by the user, or told by the routes it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.base import Target
from zerokl.check.targets.chat import ChatTarget
from zerokl.check.targets.huggingface import HuggingFaceTarget
from zerokl.check.targets.llamacpp import LlamaCppTarget
from zerokl.check.targets.openai import OpenAITarget
from zerokl.check.targets.sglang import SGLangTarget
from zerokl.check.targets.torch_model import SCHEME
from zerokl.check.targets.vllm import VLLMTarget
from zerokl.check.targets.zerokl import ZeroklTarget
from zerokl.check.wire import Wire

Maker = Callable[[Wire, str], Awaitable[Target]]

MAKERS: dict[str, Maker] = {
    "zerokl": ZeroklTarget.make,
    "sglang": SGLangTarget.make,
    "vllm": VLLMTarget.make,
    "llamacpp": LlamaCppTarget.make,
    "openai": OpenAITarget.make,
    "chat": ChatTarget.make,
    "hf": HuggingFaceTarget.make,
}


async def find_target(wire: Wire, kind: str = "auto", model: str = "") -> Target:
    """The adapter for the server behind `wire`. `model`: the name to send, where a route wants one."""
    return await MAKERS[await detect(wire) if kind == "auto" else kind](wire, model)


async def detect(wire: Wire) -> str:
    """A model in this process by its scheme; zerokl and SGLang by /server_info, llama.cpp by /props, vLLM by
    /v1/models; otherwise completions, else chat."""
    if wire.url.startswith(SCHEME):
        return "hf"
    info = await wire.get_or_none("/server_info") or await wire.get_or_none("/get_server_info")
    if isinstance(info, dict):
        return "zerokl" if "fingerprint" in info else "sglang"
    props = await wire.get_or_none("/props")
    if isinstance(props, dict) and "default_generation_settings" in props:
        return "llamacpp"
    models = await wire.get_or_none("/v1/models")
    if isinstance(models, dict) and models.get("data"):
        if models["data"][0].get("owned_by") == "vllm":
            return "vllm"
        name = models["data"][0]["id"]
        return "openai" if await _completes(wire, name) else "chat"
    raise CouldNotRun(f"{wire.url} is no server that the checker knows; name it with --target")


async def _completes(wire: Wire, model: str) -> bool:
    """With a text or, where that isn't taken, with token ids."""
    for prompt in ("a", [1]):
        try:
            reply = await wire.post(
                "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 1, "logprobs": 1}
            )
        except CouldNotRun:
            continue
        return bool(reply.get("choices"))
    return False
