"""The torch side of `tools/oracles.py`: what Hugging Face transformers computes, in float32 and in float64.

    python tools/oracle_torch.py CHECKPOINT_FOLDER QUESTIONS.json ANSWERS.npz

Runs in an environment with torch and transformers and without zerokl. For question i, answers hold `i/float32` and
`i/float64`, logits [rows, ids], and `i/greedy32` and `i/greedy64`, the greedy continuations; and for the whole
`provenance`, a JSON text.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers


def main(folder: str, questions_path: str, answers_path: str) -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # sums in float32 would depend on the number of cores
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", category=FutureWarning)
    questions = json.loads(Path(questions_path).read_text(encoding="utf-8"))
    model = load(folder)
    answers = {}
    for i, question in enumerate(questions):
        answers |= {f"{i}/{name}32": value for name, value in answer(model, question).items()}
    with everything_in_float64():
        model = model.double()
        remake_rotations(model)
        for i, question in enumerate(questions):
            answers |= {f"{i}/{name}64": value for name, value in answer(model, question).items()}
            if answers[f"{i}/float64"].dtype != np.float64:
                raise SystemExit("the float64 model computed in another type")
    np.savez(answers_path, provenance=json.dumps(provenance()), **answers)


def load(folder: str) -> torch.nn.Module:
    """The checkpoint's model, every parameter of which is from the checkpoint."""
    architecture = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    model, report = getattr(transformers, architecture).from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    wrong = {key: report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if report.get(key)}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    return model.eval()


def remake_rotations(model: torch.nn.Module) -> None:
    """Rotary frequencies anew: they were computed in float32 when the model was made."""
    for name, module in list(model.named_modules()):
        if any(buffer.endswith("inv_freq") for buffer, _ in module.named_buffers(recurse=False)):
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, type(module)(module.config))


def answer(model: torch.nn.Module, question: dict) -> dict[str, np.ndarray]:
    logits = model(torch.tensor([question["tokens"]])).logits[0]
    chosen = logits[question["rows"]][:, question["ids"]]
    return {"float": chosen.numpy(), "greedy": greedy(model, question["tokens"], question["new_tokens"])}


CACHED = ("llama", "gemma3_text")
"""Models whose cache of keys is trusted here; the others are asked with the whole text for every token."""


def greedy(model: torch.nn.Module, tokens: list[int], count: int) -> np.ndarray:
    """The likeliest next token, `count` times; what ends a text is not looked at."""
    given, cache, found = torch.tensor([tokens]), None, []
    cached = model.config.model_type in CACHED
    for _ in range(count):
        output = model(given, past_key_values=cache, use_cache=True) if cached else model(given, use_cache=False)
        found.append(int(output.logits[0, -1].argmax()))
        last = torch.tensor([found[-1:]])
        cache, given = (output.past_key_values, last) if cached else (None, torch.cat([given, last], dim=1))
    return np.array(found, np.int32)


@contextmanager
def everything_in_float64() -> Iterator[None]:
    """transformers' own code, but where it insists on float32 (norms, softmax, rotary angles) it gets float64."""
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def provenance() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
