"""Ask every question that has no answer yet, some at a time, each answer stored as it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from zerokl.evals.asking import Asker, prompt_hash
from zerokl.evals.gsm8k import Item, Task
from zerokl.evals.results import Answered, Head, Results, ResultsFile


async def run_gsm8k(
    asker: Asker,
    task: Task,
    path: Path,
    *,
    max_new_tokens: int = 512,
    parallel: int = 64,
    overwrite: bool = False,
    done: Callable[[Answered], None] = lambda _: None,
) -> Results:
    """Raises CouldNotRun at the first request error; what was answered is kept, and the next call goes on there."""
    settings = {
        "mode": task.mode,
        "shots": len(task.shots),
        "questions": len(task.items),
        "data": task.digest,
        "max_new_tokens": max_new_tokens,
        "stops": list(task.stops),
    }

    async def answer(item: Item) -> Answered:
        prompt = task.prompt(item)
        started = time.monotonic()
        said = await asker.say(prompt, max_new_tokens, task.stops)
        value = task.value(said.text)
        return Answered(
            id=item.id,
            prompt=prompt_hash(prompt),
            verdict=task.verdict(item, said.text, said.finish),
            text=said.text,
            finish=said.finish,
            value=None if value is None else str(value),
            ids=None if said.ids is None else list(said.ids),
            logprobs=None if said.logprobs is None else list(said.logprobs),
            cached_tokens=said.cached_tokens,
            seconds=round(time.monotonic() - started, 3),
        )

    file = ResultsFile(path, Head("gsm8k", settings, await asker.server()), overwrite=overwrite)
    return await answer_all(file, task.items, answer, parallel, done)


async def score_references(
    asker: Asker,
    task: Task,
    path: Path,
    *,
    parallel: int = 64,
    overwrite: bool = False,
    done: Callable[[Answered], None] = lambda _: None,
) -> Results:
    """Logprobs of the reference answers after the prompts: continuous, so far more sensitive than right and wrong."""
    settings = {"mode": task.mode, "shots": len(task.shots), "questions": len(task.items), "data": task.digest}

    async def answer(item: Item) -> Answered:
        prompt = task.prompt(item)
        logprobs = await asker.score(prompt, f" {item.answer}")
        return Answered(item.id, prompt_hash(prompt), logprobs=logprobs)

    file = ResultsFile(path, Head("gsm8k-references", settings, await asker.server()), overwrite=overwrite)
    return await answer_all(file, task.items, answer, parallel, done)


async def answer_all(
    file: ResultsFile,
    items: Iterable[Item],
    answer: Callable[[Item], Awaitable[Answered]],
    parallel: int,
    done: Callable[[Answered], None],
) -> Results:
    places = asyncio.Semaphore(parallel)

    failed = False  # told here, since those who wait for a place may get it before they are cancelled

    async def one(item: Item) -> None:
        nonlocal failed
        async with places:
            if failed:
                return
            try:
                answered = await answer(item)
            except BaseException:
                failed = True
                raise
        file.add(answered)
        done(answered)

    kept = file.results.answers
    for answered in kept.values():
        done(answered)
    tasks = [asyncio.ensure_future(one(item)) for item in items if item.id not in kept]
    try:
        await asyncio.gather(*tasks)
    finally:
        for waiting in tasks:
            waiting.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        file.close()
    return file.results
