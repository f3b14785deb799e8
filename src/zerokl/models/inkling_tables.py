"""The names that Inkling's tensors come with: the release's, or Hugging Face's with one of two prefixes.

The release interleaves the rows of every pair of gate and up (g0, u0, g1, u1, ...) and stacks experts in one tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from zerokl import ops
from zerokl.models.inkling_config import Config, by_leaf
from zerokl.models.weights import (
    How,
    Place,
    W,
    exact_float32,
    experts_on_gpu,
    matrix,
    number,
    stacked,
    takes_packed,
    taps,
    vector,
)
from zerokl.quant import Quantised


def local(config: Config) -> Sequence[int]:
    return [i for i, local in enumerate(config.is_local) if local]


def everywhere(config: Config) -> Sequence[int]:
    return [i for i, local in enumerate(config.is_local) if not local]


def dense(config: Config) -> Sequence[int]:
    return [i for i, dense in enumerate(config.is_dense) if dense]


def sparse(config: Config) -> Sequence[int]:
    return [i for i, dense in enumerate(config.is_dense) if not dense]


def profile(parts: Sequence[np.ndarray], place: Place) -> Any:
    """[B, extent] float32."""
    return ops.upload(np.ascontiguousarray(exact_float32(parts[0])), place.device)


def halves(rows: Any) -> Any:
    """g0, u0, g1, u1, ... along the last axis but one -> all gates, then all ups."""
    if isinstance(rows, Quantised):
        return rows[np.r_[0 : len(rows) : 2, 1 : len(rows) : 2]]
    return np.concatenate([rows[..., 0::2, :], rows[..., 1::2, :]], axis=-2)


@takes_packed
def interleaved(parts: Sequence[Any], place: Place) -> ops.AnyMatrix:
    return matrix([halves(parts[0])], place)


@takes_packed
def stacked_pairs(parts: Sequence[Any], place: Place) -> Sequence[ops.AnyMatrix] | ops.AnyMatrix:
    if place.device != "cpu":
        if isinstance(parts[0], Quantised):
            return place.pack_experts([[halves(parts[0][expert])] for expert in range(len(parts[0]))])
        return experts_on_gpu(halves(parts[0]), place)
    return [matrix([halves(parts[0][expert])], place) for expert in range(len(parts[0]))]


def shared_gate_up(parts: Sequence[np.ndarray], place: Place) -> ops.AnyMatrix:
    """All gates, then all ups, each in the order of `by_leaf`; from one interleaved tensor, or from two."""
    gates, ups = (parts[0][:, 0::2], parts[0][:, 1::2]) if len(parts) == 1 else parts
    rows = [by_leaf(half.transpose(2, 0, 1), place.leaves).T for half in (gates, ups)]
    return matrix([np.concatenate(rows)], place)


def shared_down(parts: Sequence[np.ndarray], place: Place) -> ops.AnyMatrix:
    """[S, E, M] -> [E, S·M]: the sum over experts is part of each leaf's chain."""
    experts = len(parts[0])
    leaves = tuple(end * experts for end in place.leaves)
    return matrix([by_leaf(parts[0].swapaxes(0, 1), place.leaves)], replace(place, leaves=leaves))


def by_kind(name: str, parameter: str, everywhere_shape: str, local_shape: str, how: How = matrix) -> tuple[W, W]:
    """One parameter whose shape depends on what the layer's heads see."""
    return (
        W(LAYER + name, parameter, everywhere_shape, how, on=everywhere),
        W(LAYER + name, parameter, local_shape, how, on=local),
    )


LAYER, MLP = "model.llm.layers.{i}.", "model.llm.layers.{i}.mlp."
# fmt: off
WEIGHTS: tuple[W, ...] = (
    # checkpoint name                            parameter                     shape      how, where
    W("model.llm.embed.weight",                  "embed",                      "V E"),
    W("model.llm.embed_norm.weight",             "embed_norm",                 "E",       vector),
    W(LAYER + "attn_norm.weight",                "layers.{i}.input_norm",      "E",       vector),
    *by_kind("attn.{wq_du,wk_dv,wv_dv,wr_du}.weight", "layers.{i}.qkvr", "{H·D,K·D,K·D,H·B} E", "{P·C,Q·C,Q·C,P·B} E"),
    *by_kind("attn.wo_ud.weight",                "layers.{i}.out",             "E H·D",   "E P·C"),
    *by_kind("attn.q_norm.weight",               "layers.{i}.q_norm",          "D",       "C",       vector),
    *by_kind("attn.k_norm.weight",               "layers.{i}.k_norm",          "D",       "C",       vector),
    *by_kind("attn.rel_logits_proj.proj",        "layers.{i}.bias_profile",    "B R",     "B W",     profile),
    *by_kind("attn.k_sconv.weight",              "layers.{i}.key_taps",        "K·D 1 T", "Q·C 1 T", taps),
    *by_kind("attn.v_sconv.weight",              "layers.{i}.value_taps",      "K·D 1 T", "Q·C 1 T", taps),
    W(LAYER + "attn_sconv.weight",               "layers.{i}.attended_taps",   "E 1 T",   taps),
    W(LAYER + "mlp_norm.weight",                 "layers.{i}.mlp_norm",        "E",       vector),
    W(LAYER + "mlp_sconv.weight",                "layers.{i}.mlp_taps",        "E 1 T",   taps),
    W(MLP + "w13_dn.weight",                     "layers.{i}.gate_up",         "2F E",    interleaved,    on=dense),
    W(MLP + "w2_md.weight",                      "layers.{i}.down",            "E F",                     on=dense),
    W(MLP + "global_scale",                      "layers.{i}.dense_scale",     "1",       number,         on=dense),
    W(MLP + "gate.weight",                       "layers.{i}.router",          "Y E",                     on=sparse),
    W(MLP + "gate.bias",                         "layers.{i}.router_bias",     "X",       vector,         on=sparse),
    W(MLP + "gate.global_scale",                 "layers.{i}.router_scale",    "1",       number,         on=sparse),
    W(MLP + "experts.w13_weight",                "layers.{i}.experts_gate_up", "X 2M E",  stacked_pairs,  on=sparse),
    W(MLP + "experts.w2_weight",                 "layers.{i}.experts_down",    "X E M",   stacked,  on=sparse),
    W(MLP + "shared_experts.shared_w13_weight",  "layers.{i}.shared_gate_up",  "S 2M E",  shared_gate_up, on=sparse),
    W(MLP + "shared_experts.shared_w2_weight",   "layers.{i}.shared_down",     "S E M",   shared_down,    on=sparse),
    W("model.llm.norm.weight",                   "norm",                       "E",       vector),
    W("model.llm.unembed.weight",                "head",                       "V E"),
)
# fmt: on
"""The release's."""

DROPPED: tuple[str, ...] = ("model.visual.*", "model.audio.*", "model.mtp.*")
"""Pictures, sound, and heads that guess several tokens: not of the text decoder."""

RENAMED = (
    ("model.llm.embed.weight", "{prefix}embed_tokens.weight"),
    ("model.llm.unembed.weight", "lm_head.weight"),
    ("model.llm.norm.weight", "{prefix}norm.weight"),
    ("model.llm.layers.", "{prefix}layers."),
    ("{wq_du,wk_dv,wv_dv,wr_du}.weight", "{q,k,v,r}_proj.weight"),
    ("wo_ud.weight", "o_proj.weight"),
    ("_sconv.weight", "_sconv.conv1d.weight"),
    (".attn.", ".self_attn."),
    ("attn_norm.weight", "input_layernorm.weight"),
    ("mlp_norm.weight", "post_attention_layernorm.weight"),
    ("gate.bias", "gate.e_score_correction_bias"),
    ("w13_dn.weight", "{gate,up}_proj.weight"),
    ("w2_md.weight", "down_proj.weight"),
    ("experts.shared_w13_weight", "experts.{gate,up}_proj"),
    ("experts.shared_w2_weight", "experts.down_proj"),
    ("experts.w13_weight", "experts.gate_up_proj"),
    ("experts.w2_weight", "experts.down_proj"),
)
"""From the release's names to Hugging Face's, in this order."""

PLAIN: dict[str, dict[str, Any]] = {
    "w13_dn.weight": {"shape": "F E", "how": matrix},
    "mlp.experts.w13_weight": {"shape": "X M+M E", "how": stacked},
    "shared_w13_weight": {"shape": "S M E"},
}
"""What else differs where nothing is interleaved."""


def hugging_face(prefix: str, embed_norm: str) -> tuple[W, ...]:
    """The same table in Hugging Face's names."""
    return tuple(renamed(row, prefix, embed_norm) for row in WEIGHTS)


def renamed(row: W, prefix: str, embed_norm: str) -> W:
    name = row.name
    if name == "model.llm.embed_norm.weight":
        name = embed_norm
    for old, new in RENAMED:
        name = name.replace(old, new.replace("{prefix}", prefix))
    changes = next((changes for end, changes in PLAIN.items() if row.name.endswith(end)), {})
    whole: dict[str, Any] = {"shape": row.shape, "how": row.how, "when": row.when, "on": row.on} | changes
    return W(name, row.parameter, **whole)


def tables(names: Collection[str]) -> tuple[Sequence[W], Sequence[str]]:
    """(what is read, what is dropped) of a checkpoint with these names."""
    if "model.llm.embed.weight" in names:
        return WEIGHTS, DROPPED
    prefix = "model.language_model." if "model.language_model.embed_tokens.weight" in names else "model."
    older = f"{prefix}embed_norm.weight"
    embed_norm = older if older in names else f"{prefix}embed_tokens.embed_norm.weight"
    return hugging_face(prefix, embed_norm), ("model.vision_tower.*", "model.audio_tower.*", "model.mtp.*")
