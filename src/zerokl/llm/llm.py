"""`LLM`: a model loaded into this process, and the engine that runs it."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from zerokl.config import Config, options
from zerokl.engine.build import build
from zerokl.errors import ConfigError, InvalidRequest
from zerokl.llm.output import Output, check_record, output_of
from zerokl.llm.params import Params, params_of
from zerokl.llm.progress import Bar

if TYPE_CHECKING:
    from zerokl.engine.assembly import Built
    from zerokl.engine.local import LocalEngine

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
Given = Params | Mapping[str, Any] | None


class LLM:
    """Safe to use from several threads, which share one batch. `close`, or `with`, gives the memory back."""

    def __init__(self, model: str = "", **config: Any) -> None:
        """`config`: fields of `zerokl.config.Config`, named as the server's flags. Raises ConfigError, CheckpointError.

        `model`: a folder, a GGUF file or a hub id; empty: SmolLM2-135M-Instruct.
        """
        self._start(config_of({"model": model, **config}))

    @classmethod
    def from_config(cls, config: Config) -> LLM:
        """The same, from a config that is already made."""
        llm = cls.__new__(cls)
        llm._start(config)
        return llm

    def _start(self, config: Config, built: Built | None = None) -> None:
        self.config = config
        self._built: Built | None = built or build(config)
        from zerokl.engine.intake import Intake
        from zerokl.engine.local import LocalEngine  # with the rest of the engine: while the weights were read

        self._engine: LocalEngine | None = LocalEngine(self._built.engine, Intake(self._built.served))

    # ---- what it can do

    @overload
    def generate(
        self, prompts: str | Sequence[int], params: Given = None, *, progress: bool = False, **more: Any
    ) -> Output: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], params: Given = None, *, progress: bool = False, **more: Any
    ) -> list[Output]: ...

    def generate(
        self, prompts: Any, params: Given = None, *, progress: bool = False, **more: Any
    ) -> Output | list[Output]:
        """Continue one prompt (a text, or its ids), or a list of them at once: then a list, in their order.

        `params` and keywords: fields of `Params`. Raises InvalidRequest, before anything runs, naming the prompt.
        """
        several = is_several(prompts)
        prompt_ids = self._all_ids(prompts) if several else [self.ids_of(prompts)]
        outputs = self._run(prompt_ids, params_of(params, more), progress)
        return outputs if several else outputs[0]

    def stream(self, prompt: Prompt, params: Given = None, *, chat: bool = False, **more: Any) -> Iterator[str]:
        """The text as it comes; joined it is `generate`'s. `chat`: the prompt is what a user says.

        Closing the iterator early ends the request.
        """
        prompt_ids = self._chat_ids([{"role": "user", "content": prompt}]) if chat else self.ids_of(prompt)
        submit = params_of(params, more).submit(stream_interval=1)
        records = self._running.run([(submit, prompt_ids)])
        return (record.text for _, record in records if check_record(record).text)

    def chat(self, messages: Sequence[Message], params: Given = None, **more: Any) -> Output:
        """Answer a conversation, through the model's chat template."""
        return self._run([self._chat_ids(messages)], params_of(params, more))[0]

    def score(self, prompt: Prompt, *, start: int = 0) -> list[float | None]:
        """Logprobs of a prompt's tokens from position `start` on. The first is None: it is where knowing begins."""
        params = params_of(None, {"max_new_tokens": 0, "logprob_start": start})
        return self._run([self.ids_of(prompt)], params)[0].prompt_logprobs or []

    def ids_of(self, prompt: Prompt) -> list[int]:
        """A text's ids, with the model's BOS if it has one; ids stay as they are."""
        if isinstance(prompt, str):
            return self._parts.tokenizer.encode(prompt)
        return [checked_id(index, token) for index, token in enumerate(prompt)]

    def flush_cache(self) -> bool:
        """Forget every cached prefix, on which no bit depends. False, and nothing has changed, while something runs."""
        return self._running.flush_cache()

    # ---- what it is

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints, equal bits."""
        return self._parts.hello.fingerprint

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return self._parts.served.vocab

    @property
    def context_length(self) -> int:
        return self._parts.served.context

    @property
    def has_chat_template(self) -> bool:
        return bool(self._parts.tokenizer.chat_template)

    @property
    def stats(self) -> dict[str, Any]:
        """Queue, cache and counters, as in /server_info."""
        return self._parts.engine.stats.as_dict()

    # ---- its end

    def close(self) -> None:
        """Give the memory back, end other ranks. Idempotent; nothing can be asked afterwards, and what other threads
        still ask ends with EngineError."""
        if self._engine is not None:
            self._engine.close()
        self._built = None
        self._engine = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ----

    @property
    def _parts(self) -> Built:
        if self._built is None:
            raise ConfigError("this LLM was closed")
        return self._built

    @property
    def _running(self) -> LocalEngine:
        if self._engine is None:
            raise ConfigError("this LLM was closed")
        return self._engine

    def _all_ids(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        ids: list[list[int]] = []
        for place, prompt in enumerate(prompts):
            try:
                ids.append(self.ids_of(prompt))
            except InvalidRequest as error:
                from zerokl.engine.local import named

                raise named(error, place, len(prompts)) from None
        return ids

    def _chat_ids(self, messages: Sequence[Message]) -> list[int]:
        return self._parts.tokenizer.encode_chat([dict(message) for message in messages])

    def _run(self, prompts: Sequence[list[int]], params: Params, progress: bool = False) -> list[Output]:
        submit = params.submit(stream_interval=0)
        outputs: dict[int, Output] = {}
        with Bar(len(prompts), progress) as bar:
            for place, record in self._running.run([(submit, prompt) for prompt in prompts]):
                outputs[place] = output_of(prompts[place], check_record(record), params)
                bar.finished(record)
        return [outputs[place] for place in range(len(prompts))]


def config_of(values: Mapping[str, Any]) -> Config:
    """Raises ConfigError for an unknown option, naming the nearest, and for a value outside its limits."""
    known = {one.name: one for one in options()}
    for name, value in values.items():
        if name not in known:
            import difflib  # 1 ms of each start

            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ConfigError(f"unknown option {name!r}; nearest: {nearest}")
        check_option(name, value, known[name].metadata)
    return Config(**values)


def check_option(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if limits["choices"] and value not in limits["choices"]:
        raise ConfigError(f"{name} is {value!r}: one of {', '.join(limits['choices'])}")
    for bound, wrong in (("minimum", operator.lt), ("maximum", operator.gt)):
        if value is not None and limits[bound] is not None and wrong(value, limits[bound]):
            raise ConfigError(f"{name} is {value!r}: the {bound} is {limits[bound]}")


def is_several(prompts: Any) -> bool:
    """A list of prompts, not one prompt. Raises InvalidRequest for what is neither."""
    if isinstance(prompts, str):
        return False
    if not isinstance(prompts, Sequence) and not hasattr(prompts, "__len__"):
        raise InvalidRequest(f"prompts is {type(prompts).__name__}: a text, a list of ids, or a list of these")
    if len(prompts) == 0:
        raise InvalidRequest("prompts is empty", param="prompts")
    return isinstance(prompts[0], str) or hasattr(prompts[0], "__len__")


def checked_id(index: int, token: Any) -> int:
    """An integer of any kind, numpy's too."""
    try:
        if isinstance(token, bool | str):
            raise TypeError
        return operator.index(token)
    except TypeError:
        raise InvalidRequest(f"prompt[{index}] is {token!r:.40}: an id is an integer", param="prompt") from None
