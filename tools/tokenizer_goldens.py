"""Make the golden files of tests/goldens/tokenizer anew: ids by llama.cpp, transformers and SentencePiece, and chats.

    python tools/tokenizer_goldens.py --python ORACLE/bin/python --llama-tokenize PATH/llama-tokenize [--model GGUF]

This side writes toy vocabularies as GGUF files; `tokenizer_oracle.py` trains them and encodes the texts of
tests/tokenizer/texts.py with other people's code. Two oracles must agree on each file, or nothing is written, but for
what is known:

    smollm, smollm2   llama.cpp's: transformers ignores that this pre-tokenizer takes each digit by itself
    qwen2             transformers' own class: it normalises to NFC, as the model's own does; llama.cpp doesn't
    llama             llama.cpp's: SentencePiece doesn't look for special tokens in a text
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.checkpoints.gguf_files import write_bpe_gguf, write_sentencepiece_gguf  # noqa: E402
from tests.tokenizer.chats import CONVERSATIONS, NAMES, TEMPLATES, TOOLS  # noqa: E402
from tests.tokenizer.many import many_texts  # noqa: E402
from tests.tokenizer.releases import RELEASES, write_release  # noqa: E402
from tests.tokenizer.texts import SPECIALS, texts  # noqa: E402

from zerokl.checkpoints.hub import resolve  # noqa: E402

GOLDENS = ROOT / "tests" / "goldens" / "tokenizer"
LLAMA_CPP_KINDS = ("gpt-2", "llama-bpe", "qwen2", "smollm")
KNOWN_EQUAL: dict[str, Callable[[str], bool]] = {
    "qwen2": lambda text: is_normalized("NFC", text),
    "smollm": lambda text: not any(character.isnumeric() for character in text),
}
"""Where the oracles must agree."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python with torch, transformers and sentencepiece")
    parser.add_argument("--llama-tokenize", help="llama.cpp's tool; without it, chats and the 5,000 texts only")
    parser.add_argument("--model", default="", help="the SmolLM2 GGUF file; default: download")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        make_chats(arguments.python, Path(temporary))
        make_many(arguments.python, Path(temporary))
        if arguments.llama_tokenize:
            make_ids(arguments, Path(temporary))


def make_chats(python: str, folder: Path) -> None:
    question = {
        "task": "render",
        "templates": TEMPLATES,
        "conversations": CONVERSATIONS,
        "tools": TOOLS,
        "names": NAMES,
    }
    write("chats", ask(python, folder, question))


def make_many(python: str, folder: Path) -> None:
    """5,000 texts through the tokenizer.json of each kind's releases, around the vocabularies of toy.json."""
    toy = json.loads((GOLDENS / "toy.json").read_text())
    folders = {
        kind: str(write_release(folder / f"many-{kind}", kind, toy["bpe"]["merges"], toy["bpe"]["special"]))
        for kind in RELEASES
    }
    question = {"task": "many", "folders": folders, "texts": many_texts(), "sentencepiece": toy["sentencepiece"]}
    write("many", ask(python, folder, question))


def make_ids(arguments: argparse.Namespace, folder: Path) -> None:
    corpus = [text for text in texts() if not any(special in text for special in SPECIALS)]
    trained = ask(arguments.python, folder, {"task": "train", "corpus": corpus, "texts": texts()})
    bpe, pieces = trained["bpe"], trained["sentencepiece"]
    file = write_sentencepiece_gguf(folder / "llama.gguf", pieces["tokens"], pieces["scores"], pieces["types"])
    ids = {"llama": llama_cpp(arguments.llama_tokenize, file)}
    compare("llama", ids["llama"], pieces.pop("ids"), lambda text: "<" not in text)
    for kind in LLAMA_CPP_KINDS:
        file = write_bpe_gguf(folder / f"{kind}.gguf", kind, bpe["merges"], bpe["special"])
        ids[kind] = llama_cpp(arguments.llama_tokenize, file)
        question = {"task": "encode", "file": str(file), "kind": kind, "merges": bpe["merges"], "texts": texts()}
        theirs = ask(arguments.python, folder, question)["ids"]
        compare(kind, ids[kind], theirs, KNOWN_EQUAL.get(kind, lambda text: True))
        if kind == "qwen2":
            ids[kind] = theirs
    write("toy", {"made with": trained["made with"], "bpe": bpe, "sentencepiece": pieces, "ids": ids})
    model = resolve(arguments.model)
    ours = llama_cpp(arguments.llama_tokenize, model)
    theirs = ask(arguments.python, folder, {"task": "encode", "file": str(model), "kind": "gguf", "texts": texts()})
    compare("smollm2", ours, theirs["ids"], KNOWN_EQUAL["smollm"])
    write("smollm2", {"made with": theirs["made with"], "sha256": sha256(model.read_bytes()).hexdigest(), "ids": ours})


def ask(python: str, folder: Path, question: dict[str, Any]) -> Any:
    """The oracle's answer, from its own process and environment."""
    question_file, answer_file = folder / "question.json", folder / "answer.json"
    question_file.write_text(json.dumps(question))
    script = Path(__file__).with_name("tokenizer_oracle.py")
    subprocess.run([python, str(script), str(question_file), str(answer_file)], check=True)
    return json.loads(answer_file.read_text())


def llama_cpp(tool: str, file: Path) -> list[list[int]]:
    """Ids by llama.cpp, without BOS."""
    command = [tool, "--model", str(file), "--ids", "--no-bos", "--no-escape", "--stdin", "--log-disable"]
    runs = (subprocess.run(command, input=text.encode(), capture_output=True, check=True) for text in texts())
    return [json.loads(run.stdout) for run in runs]


def compare(kind: str, left: list[list[int]], right: list[list[int]], known_equal: Callable[[str], bool]) -> None:
    for text, a, b in zip(texts(), left, right, strict=True):
        if a != b and known_equal(text):
            raise SystemExit(f"{kind}: the oracles differ on {text!r}: {a} {b}")


def write(name: str, golden: dict[str, Any]) -> None:
    GOLDENS.mkdir(parents=True, exist_ok=True)
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in golden.items())
    (GOLDENS / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
