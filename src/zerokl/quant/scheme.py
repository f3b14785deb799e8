"""What a config says about quantisation: who wrote it, and which modules are left out.

The tensors decide what is quantised and how; the config must agree, or one error says where it doesn't.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from zerokl.errors import CheckpointError, ConfigError, UnsupportedModel

ROOTS = ("model.language_model.", "language_model.", "model.llm.", "model.")
"""What stands before module names in files, and sometimes doesn't in lists."""

METHODS = {
    "modelopt": ("NVFP4", "W4A16_NVFP4", "FP8", "FP8_PB_WO"),
    "compressed-tensors": ("nvfp4-pack-quantized", "float-quantized", "naive-quantized"),
    "fp8": ("e4m3",),
}
"""quant_method -> the formats of it that are read."""

OPTION = {
    "modelopt_fp4": "NVFP4 as ModelOpt writes it",
    "modelopt_fp8": "FP8 as ModelOpt writes it",
    "modelopt": "either",
    "compressed-tensors": "that library's NVFP4 or FP8",
    "fp8": "FP8 in blocks of 128 by 128, or by tensor",
    "gguf": "a GGUF file's block types",
}
"""--quantization, in SGLang's words."""

BLOCK_SHAPE = [128, 128]


class Scheme(Struct, frozen=True):
    method: str
    format: str
    left_out: tuple[str, ...]
    """As listed: names, globs, or regular expressions after "re:"."""

    @property
    def option(self) -> str:
        """The word of `--quantization` for it."""
        if self.method == "modelopt":
            return "modelopt_fp4" if "NVFP4" in self.format else "modelopt_fp8"
        return self.method

    def leaves_out(self, module: str) -> bool:
        """An entry is the module, or a module that it is in; part of a component is nothing."""
        names = {module, *(module.removeprefix(root) for root in ROOTS)}
        return any(matches(entry, name) for entry in self.left_out for name in names)


def matches(entry: str, module: str) -> bool:
    if entry.startswith("re:"):
        return re.match(entry[3:], module) is not None
    if "*" in entry:
        parts = module.split(".")
        return any(fnmatch.fnmatchcase(".".join(parts[:end]), entry) for end in range(1, len(parts) + 1))
    bare = next((entry.removeprefix(root) for root in ROOTS if entry.startswith(root)), entry)
    return any(module == one or module.startswith(one + ".") for one in (entry, bare))


def scheme_of(config: Mapping[str, Any], separate: Mapping[str, Any] | None = None) -> Scheme | None:
    """From config.json's quantization_config, and hf_quant_config.json where there is one: they must agree.

    None: nothing is quantised. Raises CheckpointError, UnsupportedModel.
    """
    text = config.get("text_config") or {}
    inside = config.get("quantization_config") or (
        text.get("quantization_config") if isinstance(text, Mapping) else None
    )
    schemes = []
    if inside:
        schemes.append(of_config(table(inside, "quantization_config")))
    if separate:
        schemes.append(of_config(from_separate(table(separate, "hf_quant_config.json"))))
    if len(schemes) == 2 and (schemes[0].method, schemes[0].format) != (schemes[1].method, schemes[1].format):
        both = " and ".join(f"{one.method} {one.format}" for one in schemes)
        raise CheckpointError(f"config.json and hf_quant_config.json disagree about the quantisation: {both}")
    return schemes[0] if schemes else None


def table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{name} must be a table, not {value!r:.60}")
    return value


def from_separate(file: Mapping[str, Any]) -> dict[str, Any]:
    """hf_quant_config.json in the words of quantization_config."""
    inner = table(file.get("quantization") or {}, "hf_quant_config.json's quantization")
    return {**inner, "quant_method": "modelopt", "ignore": inner.get("exclude_modules")}


def of_config(config: Mapping[str, Any]) -> Scheme:
    method, format = str(config.get("quant_method", "")), format_of(config)
    if method not in METHODS or format not in METHODS[method]:
        known = "; ".join(f"{name}: {', '.join(formats)}" for name, formats in METHODS.items())
        raise UnsupportedModel(
            f"weights quantised by {method!r:.40} as {format!r:.60} aren't supported; supported: {known}"
        )
    listed: Any = next(
        (config[key] for key in ("ignore", "modules_to_not_convert", "ignored_layers") if config.get(key)), []
    )
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise CheckpointError(f"the list of modules that aren't quantised must hold names, not {listed!r:.60}")
    return Scheme(method, format, tuple(listed))


def format_of(config: Mapping[str, Any]) -> str:
    match config.get("quant_method"):
        case "modelopt":
            return str(config.get("quant_algo", "")).upper()
        case "compressed-tensors":
            return str(config.get("format", ""))
        case "fp8":
            block = config.get("weight_block_size")
            if block is not None and list(block) != BLOCK_SHAPE:
                raise UnsupportedModel(f"FP8 in blocks of {block!r:.40} isn't supported, only of {BLOCK_SHAPE}")
            return str(config.get("fmt", "e4m3"))
    return ""


def check_option(wanted: str, scheme: Scheme | None, is_gguf: bool) -> None:
    """--quantization says no more than what the checkpoint says. Raises ConfigError for a contradiction."""
    if not wanted:
        return
    found = "gguf" if is_gguf else scheme.option if scheme else None
    if found is None:
        raise ConfigError(f"--quantization {wanted}: the checkpoint isn't quantised, and zerokl never quantises one")
    if wanted != found and not (wanted == "modelopt" and found.startswith("modelopt")):
        raise ConfigError(f"--quantization {wanted}: the checkpoint says {found}")
