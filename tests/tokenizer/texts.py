"""Texts on which tokenizers differ: the corpus of the tokenizer goldens and of the property tests."""

# ruff: noqa: E501 - a text is a text, however long
from __future__ import annotations

PROSE = [
    "The quick brown fox jumps over the lazy dog.",
    "It's John's; they're sure we've said I'd say you'll say I'm right, don't, can't, won't.",
    "IT'S JOHN'S; THEY'RE SURE WE'VE SAID I'D SAY YOU'LL SAY I'M RIGHT, DON'T",
    "He said: “Nothing’s wrong” – or did he — ‘maybe’…",
    "Prices rose 12.5% to $1,234,567.89 (from €99) in 2024-11-30T23:59:59Z.",
    "a", "A", " a", "a ", "  a", "a  ", "\ta", "a\t", "\na", "a\n", " \n a \n ", "a\r\nb\r\n\r\nc", "a\u00a0b", "",
    "naïve café coöperate Ångström façade Straße ǅ ŉ İstanbul", "e\u0301 vs é, n\u0303 vs ñ, \u1112\u1161\u11ab vs 한",
    "ﬁ ﬂ ﬃ ² ³ ¹ ½ ¾ ① Ⅷ ㊿ ㍿ ℃ ™ ﷺ",
]  # fmt: skip
NUMBERS = [
    "1", "12", "123", "1234", "12345", "123456", "1234567", "3.14159", "1e-05", "0x1F", "1,000,000", "v1.2.3", "x1y22z333",
    "१२३", "٣٤٥", "一二三", "12３4", "½1", "007 008", "2023年12月31日", "+1 (555) 123-4567", "1 2 3", "1  2", "a1", "1a", "'1", "1'",
]  # fmt: skip
CODE = [
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]; }\n",
    "    if x:\n        y = 1\n\n\n        z = 2\n\treturn\n",
    "SELECT * FROM t WHERE id='1' AND name <> \"x\";",
    "<div class=\"a\">&nbsp;</div><!-- c -->", "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}",
    "https://example.com/a?b=c&d=e#f", "C:\\Users\\x\\file.txt", "a_b_c __init__ camelCase PascalCase SCREAMING_CASE kebab-case",
    "!!! ??? ... --- === *** ### $$$ %%% ^^^ &&& ((( ))) [[[ ]]] {{{ }}}", "!=\n\n==\n", "x->y::z<<w>>=3;", "a'b''c'''d", "\\\\ \\n \\t",
    "```python\nprint('hi')\n```", "#include <stdio.h>\r\nint main(void){return 0;}\r\n",
]  # fmt: skip
SCRIPTS = [
    "你好，世界！这是一个测试。", "日本語のテキスト、カタカナとひらがな。", "한국어 문장입니다.", "Привет, мир! Как дела?", "Γειά σου Κόσμε",
    "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "வணக்கம் உலகம்", "გამარჯობა", "Xin chào thế giới", "ᚠᛇᚻ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚",
    "漢字かな交じり文 mixed with English 和 123", "a你b好c", "你 好", "、。「」", "\u3000全角\u3000space",
]  # fmt: skip
EMOJI = [
    "😀", "😀😃", " 😀 ", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "👍🏽", "❤️", "❤", "☺️!", "1️⃣", "🫠🪿", "text😀text", "😀 text 😀", "\u200d", "\ufe0f", "e\u0301\u0302\u0303",
]  # fmt: skip
CONTROLS = [
    "\x00", "a\x00b", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f", "\x80\x85\x9f", "\u200b\u200c\u2060", "\ufeffBOM", "\u2028\u2029", "\ufffd", "a\ufffdb",
    "\u202eright to left", "\ue000 private", "\U0010ffff", "\U000e0001", "\x0b\x0c", "\u1680\u2003\u205f",
]  # fmt: skip
RUNS = [
    *(" " * n for n in (2, 3, 4, 7, 8, 15, 16, 31, 33, 80)), *("\n" * n for n in (2, 3, 4, 9)), "\t\t\t", " \n" * 5, "a" * 100, "ab" * 60, "A" * 33,
    "1" * 50, "." * 70, "-" * 80, "=" * 64, "é" * 30, "你" * 30, "😀" * 20, "'" * 9, " x" * 40, "x " * 40, "\u00a0" * 5,
    "a" + " " * 20 + "b", "a" + "\n" * 6 + "b",
]  # fmt: skip
SPECIALS = [
    "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>", "a<|endoftext|>b", "<|im_start|><|im_end|>", " <|im_end|> ", "<|im_", "<|unknown|>",
    "<s>", "</s>", "<unk>", "<0x41>", "▁", "a▁b", "Ġ", "aĠb", "Ċ",
]  # fmt: skip


def texts() -> list[str]:
    """About 300, each once, in a fixed order: the lists above, and some of them joined."""
    single = [*PROSE, *NUMBERS, *CODE, *SCRIPTS, *EMOJI, *CONTROLS, *RUNS, *SPECIALS]
    joined = [left + " " + right for left, right in zip(single[::3], reversed(single[::2]), strict=False)]
    glued = [left + right for left, right in zip(single[1::3], single[::-2], strict=False)]
    return list(dict.fromkeys([*single, *joined, *glued]))
