"""Inkling's config, in the released form's keys or in Hugging Face's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.errors import CheckpointError, UnsupportedModel
from zerokl.models.fields import Fields
from zerokl.models.memory import Conv, Keys, LayerMemory
from zerokl.models.split import Cut, Share, Sharing, Width
from zerokl.models.split import Heads as HeadAxes

LOCAL, GLOBAL = "hybrid_sliding", "hybrid"
GLOBAL_HEADS, LOCAL_HEADS = HeadAxes(), HeadAxes("P", "Q", "C")
MUST_BE_TRUE = (
    *("use_sconv", "use_embed_norm", "use_gate_bias", "use_global_scale", "norm_after_topk", "shared_expert_sink"),
)
MEDIA = {"image": 200054, "audio": 200053}
"""Ids that stand for a piece of a picture or of sound, unless the config has `image_token_id`, `audio_token_id`."""
MUST_BE_FALSE = ("q_bias", "o_bias", "tie_word_embeddings")


@dataclass(frozen=True, slots=True)
class Heads:
    """Those of one kind of layer."""

    num_heads: int
    num_kv_heads: int
    size: int
    sharing: Sharing = None

    def cut(self, qkvr: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """[T, ...] -> q [T, H·D], k and v [T, K·D], and what is left."""
        q, kv = self.num_heads * self.size, self.num_kv_heads * self.size
        first, second, third, fourth = ops.columns(qkvr, q, q + kv, q + 2 * kv)
        return first, second, third, fourth


@dataclass(frozen=True, slots=True, eq=False)
class Config:
    vocab_size: int
    """Of real tokens."""
    padded_vocab_size: int
    hidden_size: int
    dense_size: int
    expert_size: int
    num_layers: int
    global_heads: Heads
    local_heads: Heads
    context_length: int
    norm_eps: float
    window: int
    is_local: tuple[bool, ...]
    is_dense: tuple[bool, ...]
    """Per layer."""
    bias_size: int
    bias_extent: int
    """Of global layers; a local layer's is its window."""
    log_floor: int | None
    log_alpha: float
    num_experts: int
    experts_per_token: int
    num_shared: int
    route_scale: float
    width_multiplier: float
    taps: int
    media_ids: tuple[tuple[int, str], ...]
    """What the text decoder alone can't read, and what it would be."""
    expert_leaves: tuple[int, ...] = ()
    """Where the leaves of the experts' width end, in the rank's part; empty: all of it is one."""

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config with or without a `text_config`. Raises CheckpointError, UnsupportedModel."""
        text = config.get("text_config") or config
        if not isinstance(text, Mapping):
            raise CheckpointError(f"the config's text_config must be a table, not {text!r:.60}")
        fields = Fields(text)
        check_flags(fields)
        num_layers, padded = fields.count("num_hidden_layers"), fields.count("vocab_size")
        vocab_size = fields.count("unpadded_vocab_size", padded)
        if vocab_size > padded:
            raise CheckpointError(f"the config's unpadded_vocab_size {vocab_size} is above vocab_size {padded}")
        dense_size, expert_size = widths(fields)
        context = "model_max_length" if text.get("model_max_length") is not None else "max_position_embeddings"
        return cls(
            vocab_size=vocab_size,
            padded_vocab_size=padded,
            hidden_size=fields.count("hidden_size"),
            dense_size=dense_size,
            expert_size=expert_size,
            num_layers=num_layers,
            global_heads=heads(fields, ""),
            local_heads=heads(fields, "swa_"),
            context_length=fields.count(context, 131_072),
            norm_eps=fields.positive("rms_norm_eps", 1e-6),
            window=fields.count("sliding_window_size", 512),
            is_local=local_layers(fields, num_layers),
            is_dense=dense_layers(fields, num_layers),
            bias_size=fields.count("d_rel", 16),
            bias_extent=fields.count("rel_extent", 1024),
            log_floor=None if text.get("log_scaling_n_floor") is None else fields.count("log_scaling_n_floor"),
            log_alpha=fields.positive("log_scaling_alpha", 0.1),
            num_experts=fields.count("n_routed_experts", 256),
            experts_per_token=fields.count("num_experts_per_tok", 6),
            num_shared=fields.count("n_shared_experts", 2),
            route_scale=fields.positive("route_scale", 8.0),
            width_multiplier=fields.positive("logits_mup_width_multiplier", 24.0),
            taps=fields.count("sconv_kernel_size", fields.count("conv_kernel_size", 4)),
            media_ids=media_ids(config, vocab_size),
        )

    @property
    def num_kv_heads(self) -> int:
        return self.global_heads.num_kv_heads

    @property
    def head_size(self) -> int:
        return self.global_heads.size

    def heads(self, layer: int) -> Heads:
        return self.local_heads if self.is_local[layer] else self.global_heads

    @property
    def axes(self) -> dict[str, int]:
        """H, K, D are of global layers, P, Q, C of local ones; Y: all that the router scores."""
        everywhere, nearby = self.global_heads, self.local_heads
        return {
            "V": self.padded_vocab_size,
            "E": self.hidden_size,
            "F": self.dense_size,
            "M": self.expert_size,
            **dict(zip("HKD", (everywhere.num_heads, everywhere.num_kv_heads, everywhere.size), strict=True)),
            **dict(zip("PQC", (nearby.num_heads, nearby.num_kv_heads, nearby.size), strict=True)),
            "B": self.bias_size,
            "R": self.bias_extent,
            "W": self.window,
            "X": self.num_experts,
            "S": self.num_shared,
            "Y": self.num_experts + self.num_shared,
            "T": self.taps,
        }

    @property
    def cuts(self) -> tuple[Cut, ...]:
        return (GLOBAL_HEADS, LOCAL_HEADS, Width("F"), Width("M"))

    def of_rank(self, share: Share) -> Config:
        """With the heads that a rank has, and its leaves of an expert."""
        everywhere, nearby = self.global_heads.size, self.local_heads.size
        return replace(
            self,
            global_heads=Heads(size=everywhere, **share.heads(GLOBAL_HEADS)),
            local_heads=Heads(size=nearby, **share.heads(LOCAL_HEADS)),
            expert_leaves=share.parts["M"].ends,
            expert_size=share.parts["M"].length,
        )

    @property
    def shared_of_column(self) -> np.ndarray:
        """[S·M]: whose each hidden number of the shared experts is, in the order in which they are summed."""
        return by_leaf(np.arange(self.num_shared)[:, None].repeat(self.expert_size, axis=1), self.expert_leaves)

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """Keys as normalised, values as convolved, and the last inputs of four convolutions."""
        return tuple(
            LayerMemory(
                Keys(kind.num_kv_heads, kind.size, self.window if local else None, kind.sharing),
                tuple(Conv(self.taps, channels) for channels in self.convolved(kind)),
            )
            for local, kind in ((local, self.heads(i)) for i, local in enumerate(self.is_local))
        )

    def convolved(self, kind: Heads) -> tuple[int, int, int, int]:
        """Channels of keys, of values, of attention's and of the MLP's output."""
        return kind.num_kv_heads * kind.size, kind.num_kv_heads * kind.size, self.hidden_size, self.hidden_size


def by_leaf(columns: np.ndarray, leaves: Sequence[int]) -> np.ndarray:
    """[..., S, M] -> [..., S·M]: leaf after leaf of M, in each expert after expert: the order of a leaf's chain."""
    parts = np.split(columns, leaves[:-1], axis=-1)
    return np.concatenate([part.reshape(*part.shape[:-2], -1) for part in parts], axis=-1)


def check_flags(fields: Fields) -> None:
    fields.require("hidden_act", "silu")
    fields.require("gate_activation", "sigmoid")
    wrong = [key for key in MUST_BE_TRUE if not fields.flag(key, True)]
    wrong += [key for key in MUST_BE_FALSE if fields.flag(key)]
    if wrong or fields.config.get("final_logit_softcapping") is not None:
        raise UnsupportedModel(f"Inkling with another {', '.join(wrong) or 'final_logit_softcapping'} isn't supported")


def media_ids(config: Mapping[str, Any], vocab_size: int) -> tuple[tuple[int, str], ...]:
    """Of a config of the whole model, not of a text decoder's own."""
    if not config.get("text_config"):
        return ()
    found = [(Fields(config).count(f"{kind}_token_id", usual), kind) for kind, usual in MEDIA.items()]
    return tuple((token, kind) for token, kind in found if token < vocab_size)


def widths(fields: Fields) -> tuple[int, int]:
    """(dense MLP, one expert): what `intermediate_size` means depends on who wrote the config."""
    if fields.config.get("dense_intermediate_size") is not None:
        return fields.count("dense_intermediate_size"), fields.count("intermediate_size")
    return fields.count("intermediate_size"), fields.count("moe_intermediate_size")


def heads(fields: Fields, prefix: str) -> Heads:
    num_heads = fields.count(f"{prefix}num_attention_heads")
    num_kv_heads = fields.count(f"{prefix}num_key_value_heads", num_heads)
    fields.divides(f"{prefix}num_attention_heads", num_heads, num_kv_heads)
    return Heads(num_heads, num_kv_heads, fields.count(f"{prefix}head_dim", 128))


def local_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    if fields.config.get("layer_types") is not None:
        kinds = fields.layer_types("layer_types", [GLOBAL] * num_layers, LOCAL, GLOBAL)
        return tuple(kind == LOCAL for kind in kinds)
    found = fields.layer_numbers("local_layer_ids", num_layers, [i for i in range(num_layers) if (i + 1) % 6])
    return tuple(i in found for i in range(num_layers))


def dense_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    if fields.config.get("mlp_layer_types") is not None:
        kinds = fields.layer_types("mlp_layer_types", ["sparse"] * num_layers, "dense", "sparse")
        return tuple(kind == "dense" for kind in kinds)
    first_sparse = fields.config.get("dense_mlp_idx") or 0
    return tuple(i < first_sparse for i in range(num_layers))
