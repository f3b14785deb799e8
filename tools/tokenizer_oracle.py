"""Answers tokenizer_goldens.py with other people's code; runs in the environment of transformers and sentencepiece.

python tools/tokenizer_oracle.py question.json answer.json
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import jinja2
import sentencepiece
import tokenizers
import transformers
from transformers import AutoTokenizer, GemmaTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import generate_merges
from transformers.utils.chat_template_utils import render_jinja_template

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
NUM_MERGES, NUM_PIECES = 700, 1000


def main() -> None:
    question = json.loads(Path(sys.argv[1]).read_text())
    answer = TASKS[question["task"]](question)
    names = (transformers, tokenizers, sentencepiece)
    answer["made with"] = {module.__name__: module.__version__ for module in names}
    Path(sys.argv[2]).write_text(json.dumps(answer))


def train(question: dict[str, Any]) -> dict[str, Any]:
    """Vocabularies learned from the corpus, in which no special token stands."""
    corpus = question["corpus"]
    return {"bpe": train_bpe(corpus), "sentencepiece": train_sentencepiece(corpus, question["texts"])}


def train_bpe(corpus: list[str]) -> dict[str, Any]:
    """Merges learned without any split into words, so that they cross every border a pre-tokenizer draws."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=256 + NUM_MERGES,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=12,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus * 2, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {"merges": [" ".join(merge) for merge in merges], "special": SPECIAL}


def train_sentencepiece(corpus: list[str], texts: list[str]) -> dict[str, Any]:
    """A model with Llama's settings, and its own encoding of the texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in corpus for line in text.replace("\0", "").splitlines()] * 2),
        model_writer=model,
        model_type="bpe",
        vocab_size=NUM_PIECES,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        character_coverage=0.98,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.vocab_size())
    kinds = [(2, processor.is_unknown), (3, processor.is_control), (6, processor.is_byte), (5, processor.is_unused)]
    return {
        "tokens": [processor.id_to_piece(i) for i in ids],
        "scores": [processor.get_score(i) for i in ids],
        "types": [next((kind for kind, is_kind in kinds if is_kind(i)), 1) for i in ids],
        "ids": [processor.encode(text) for text in texts],
    }


def encode(question: dict[str, Any]) -> dict[str, Any]:
    tokenizer = load(question)
    return {"ids": [tokenizer.encode(text, add_special_tokens=False) for text in question["texts"]]}


def load(question: dict[str, Any]) -> Any:
    """The model's own tokenizer class where transformers has one that takes a vocabulary, else its GGUF loader."""
    classes = {"gpt-2": GPT2Tokenizer, "qwen2": Qwen2Tokenizer}
    file = Path(question["file"])
    loaded = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if question["kind"] not in classes:
        return loaded
    merges = [tuple(merge.split(" ")) for merge in question["merges"]]
    tokenizer = classes[question["kind"]](vocab=loaded.get_vocab(), merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    return tokenizer


def many(question: dict[str, Any]) -> dict[str, Any]:
    """Digests of ids and of decoded texts, block by block, for each kind."""
    tokenizers_of = {kind: AutoTokenizer.from_pretrained(folder) for kind, folder in question["folders"].items()}
    pieces = question["sentencepiece"]
    vocab = {token: i for i, token in enumerate(pieces["tokens"])}
    scores = dict(zip(pieces["tokens"], pieces["scores"], strict=True))
    merges = generate_merges(vocab, scores)
    tokenizers_of["llama"] = llama2(vocab, merges)
    tokenizers_of["gemma"] = GemmaTokenizer(vocab=vocab, merges=merges, bos_token="<s>", eos_token="</s>")
    answers = {}
    for kind, tokenizer in tokenizers_of.items():
        chosen = [text for text in question["texts"] if kind in question["folders"] or "<" not in text]
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in chosen]
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        decoded = [tokenizer.decode(one, **options) for one in ids]
        answers[kind] = {"texts": len(chosen), "ids": digests(ids), "decoded": digests(decoded)}
    return {"kinds": answers}


def llama2(vocab: dict[str, int], merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """As Llama 2's release: a space before every text, as SentencePiece has it. The class of today leaves it out where
    the text begins with one.
    """
    model = tokenizers.models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    space = [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = tokenizers.normalizers.Sequence(space)
    back = tokenizers.decoders
    steps = [back.Replace("▁", " "), back.ByteFallback(), back.Fuse(), back.Strip(content=" ", left=1)]
    tokenizer.decoder = back.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def digests(values: list[Any], block: int = 10) -> str:
    """Four hex digits for every ten of them: a golden that says where, and stays small."""
    blocks = (json.dumps(values[i : i + block]).encode() for i in range(0, len(values), block))
    return "".join(hashlib.sha256(one).hexdigest()[:4] for one in blocks)


def render(question: dict[str, Any]) -> dict[str, Any]:
    """Every template with every conversation, with and without tools and generation prompt; null where it raised."""
    texts: dict[str, str | None] = {}
    for name, source in question["templates"].items():
        for i, messages in enumerate(question["conversations"]):
            for tools in (None, question["tools"]):
                for prompt in (False, True):
                    options = {"tools": tools, "add_generation_prompt": prompt, **question["names"]}
                    try:
                        text = render_jinja_template([messages], chat_template=source, **options)[0][0]
                    except (jinja2.TemplateError, TypeError):
                        text = None
                    texts[f"{name}/{i}/{bool(tools)}/{prompt}"] = text
    return {"texts": texts}


TASKS = {"train": train, "encode": encode, "render": render, "many": many}

if __name__ == "__main__":
    main()
