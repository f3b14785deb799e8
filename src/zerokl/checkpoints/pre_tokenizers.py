"""How byte-level BPE tokenizers cut a text into words, by the names that GGUF files give the ways.

Where llama.cpp's way is an approximation of the model's own (capital and small letters, Unicode normalisation), the
model's own stands here. A name that isn't known is refused: a wrong cut gives other ids without any error.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace


class PreTokenizer(Struct, frozen=True):
    """How one kind of byte-level BPE cuts text into words, before any merge."""

    patterns: tuple[str, ...] = ()
    """Each cuts the pieces further; then bytes are spelt as letters."""
    gpt2_words: bool = False
    """Cut by the ByteLevel step's own pattern as well (GPT-2's)."""
    digits: bool = False
    """Each digit by itself, first."""
    normalizer: str | None = None
    whole_words: bool = False
    """A word that is in the vocabulary is taken whole, before any merge (Llama 3)."""
    add_bos: bool = False
    """Unless the file says otherwise."""
    punctuation: bool = False
    """Runs of punctuation by themselves, first."""
    triples: bool = False
    """Of what the bytes are spelt as: runs of digits by themselves, and those cut in threes from the left."""


ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST
HIGH, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{HIGH}*{LOW}+%(end)s|[^\r\n\p{{L}}\p{{N}}]?{HIGH}+{LOW}*%(end)s|\p{{N}}%(digits)s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + REST
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + REST,
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷ"
    "ᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿ"
    "ⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""Letters that have a case, as DeepSeek LLM's release lists them."""
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{CASED_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-\ud7ff]+",
    r"\p{N}",
)
VIKING = (r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}")
SEED_CODER = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + REST

LLAMA3 = PreTokenizer((WORDS % "{1,3}",), whole_words=True, add_bos=True)
PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(gpt2_words=True),
    "smollm": PreTokenizer(gpt2_words=True, digits=True),
    "llama-bpe": LLAMA3,
    "dbrx": replace(LLAMA3, whole_words=False, add_bos=False),
    "qwen2": PreTokenizer((WORDS % "",), normalizer="NFC"),
    "deepseek-r1-qwen": PreTokenizer((WORDS % "",)),
    "tekken": PreTokenizer((CASED % {"end": "", "digits": ""},), whole_words=True, add_bos=True),
    "gpt-4o": PreTokenizer((CASED % {"end": ENDINGS + "?", "digits": "{1,3}"},)),
    "deepseek-coder": PreTokenizer(DEEPSEEK_CODER),
    "deepseek-v3": PreTokenizer(DEEPSEEK_V3),
    "seed-coder": PreTokenizer((SEED_CODER,)),
    "viking": PreTokenizer(VIKING),
    "falcon": PreTokenizer(gpt2_words=True, punctuation=True, triples=True),
    "deepseek-llm": PreTokenizer(DEEPSEEK_LLM),
}
SAME_AS = {
    "gpt-2": "phi-2 olmo mpt jais trillion granite-docling mellum a.x-4.0 gigachat",
    "smollm": "starcoder refact command-r codeshell exaone minerva-7b",
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    "dbrx": "smaug-bpe chatglm-bpe glm4",
    "deepseek-r1-qwen": "stablelm2 hunyuan grok-2",
    "gpt-4o": "llama4",
    "deepseek-v3": "hunyuan-dense",
}
"""Other names of the same way."""
ALIASES = {alias: name for name, aliases in SAME_AS.items() for alias in aliases.split()}
