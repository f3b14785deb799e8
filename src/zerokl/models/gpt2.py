"""GPT-2: positions are learned vectors added to the embeddings, nothing turns; layer norms, biases, gelu.

Its matrices are stored transposed, [inputs, outputs], and queries, keys and values as one. The first release's names
lack "transformer." in front.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np
from msgspec.structs import replace

from zerokl import ops
from zerokl.errors import UnsupportedModel
from zerokl.models.fields import Fields
from zerokl.models.layers import ungated_mlp
from zerokl.models.llama import logits, untied
from zerokl.models.split import Cut, Heads, Share, Width
from zerokl.models.weights import Parameters, W, transposed, vector

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits", "tables"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    head_size: int
    context_length: int
    norm_eps: float
    untied: bool

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        fields.require("activation_function", "gelu_new", "gelu_pytorch_tanh")
        for key, wanted in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
            if fields.flag(key, wanted) != wanted:
                raise UnsupportedModel(f"{key} {not wanted} isn't supported in GPT-2")
        hidden_size, num_heads = fields.count("n_embd", 768), fields.count("n_head", 12)
        fields.divides("n_embd", hidden_size, num_heads)
        return cls(
            vocab_size=fields.count("vocab_size", 50_257),
            hidden_size=hidden_size,
            intermediate_size=fields.count("n_inner", 4 * hidden_size),
            num_layers=fields.count("n_layer", 12),
            num_heads=num_heads,
            head_size=hidden_size // num_heads,
            context_length=fields.count("n_positions", 1024),
            norm_eps=fields.positive("layer_norm_epsilon", 1e-5),
            untied=not fields.flag("tie_word_embeddings", True),
        )

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads

    @property
    def axes(self) -> dict[str, int]:
        return {
            "V": self.vocab_size,
            "E": self.hidden_size,
            "F": self.intermediate_size,
            "H": self.num_heads,
            "K": self.num_kv_heads,
            "D": self.head_size,
            "P": self.context_length,
        }

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """What ranks share."""
        return (Heads(), Width("F"))

    def of_rank(self, share: Share) -> Self:
        """With the number of the heads that a rank has."""
        return dataclasses.replace(self, num_heads=share.heads()["num_heads"])


LAYER = "transformer.h.{i}."
# fmt: off
WEIGHTS: tuple[W, ...] = (
    # checkpoint name                parameter                     shape                  how, when
    W("transformer.wte.weight",      "embed",                      "V E"),
    W("transformer.wpe.weight",      "positions",                  "P E"),
    W(LAYER + "ln_1.weight",         "layers.{i}.input_norm",      "E",              vector),
    W(LAYER + "ln_1.bias",           "layers.{i}.input_norm_bias", "E",              vector),
    W(LAYER + "attn.c_attn.weight",  "layers.{i}.qkv",             "E H·D+K·D+K·D",  transposed),
    W(LAYER + "attn.c_attn.bias",    "layers.{i}.qkv_bias",        "H·D+K·D+K·D",    vector),
    W(LAYER + "attn.c_proj.weight",  "layers.{i}.out",             "H·D E",          transposed),
    W(LAYER + "attn.c_proj.bias",    "layers.{i}.out_bias",        "E",              vector),
    W(LAYER + "ln_2.weight",         "layers.{i}.mlp_norm",        "E",              vector),
    W(LAYER + "ln_2.bias",           "layers.{i}.mlp_norm_bias",   "E",              vector),
    W(LAYER + "mlp.c_fc.weight",     "layers.{i}.up",              "E F",            transposed),
    W(LAYER + "mlp.c_fc.bias",       "layers.{i}.up_bias",         "F",              vector),
    W(LAYER + "mlp.c_proj.weight",   "layers.{i}.down",            "F E",            transposed),
    W(LAYER + "mlp.c_proj.bias",     "layers.{i}.down_bias",       "E",              vector),
    W("transformer.ln_f.weight",     "norm",                       "E",              vector),
    W("transformer.ln_f.bias",       "norm_bias",                  "E",              vector),
    W("lm_head.weight",              "head",                       "V E",            when=untied),
)
# fmt: on

DROPPED: tuple[str, ...] = (
    LAYER + "attn.bias",  # the causal mask, as a tensor
    LAYER + "attn.masked_bias",
    "lm_head.weight",
)


def tables(names: Collection[str]) -> tuple[Sequence[W], Sequence[str]]:
    """What is read and what is dropped, in the names that the checkpoint has."""
    if "wte.weight" not in names:
        return WEIGHTS, DROPPED
    rows = [replace(row, name=row.name.removeprefix("transformer.")) for row in WEIGHTS]
    return rows, [name.removeprefix("transformer.") for name in DROPPED]


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, kv_layers: Sequence[ops.LayerKV]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `kv_layers`."""
    eps, places = config.norm_eps, ops.embedding(weights.positions, ragged.positions)
    x = ops.scale(ops.embedding(weights.embed, tokens), 1.0, residual=places)
    nothing = ops.rope_table(ragged.positions, np.empty(0))
    for layer, kv in zip(weights.layers, kv_layers, strict=True):
        normed = ops.layer_norm(x, layer.input_norm, layer.input_norm_bias, eps)
        qkv = ops.linear(normed, layer.qkv, bias=layer.qkv_bias)
        q = ops.rotate_and_store(qkv, kv, nothing, config.num_heads)
        seen = ops.attention(q, kv, config.head_size**-0.5)
        x = ops.linear(seen, layer.out, bias=layer.out_bias, residual=x)
        x = ungated_mlp(ops.layer_norm(x, layer.mlp_norm, layer.mlp_norm_bias, eps), layer, residual=x)
    return ops.layer_norm(x, weights.norm, weights.norm_bias, eps)
