"""Inkling, text: no rotary positions, but a learned bias by distance; short convolutions; a mixture with a shared sink.

    h = x + S(attention(norm(x)))        S(u) = u + convolution of the last four u, channel by channel
    y = h + S(mlp(norm(h)))              keys and values go through an S of their own before the heads are cut

Heads are normalised, so scores are q . k / D + bias; global layers multiply q and bias by a temperature that grows with
the logarithm of the position. Local layers see a window, have heads of their own, and their bias reaches as far as it.
The first layers' MLP is dense, the others route by sigmoid: the experts that every token goes to take their share of
the weight from the same sum. `inkling_tables.py` has the names that checkpoints come with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.models.inkling_config import Config
from zerokl.models.inkling_tables import DROPPED, WEIGHTS, tables
from zerokl.models.layers import conv_state, keys_of
from zerokl.models.weights import Parameters

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits", "tables"]


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, layers: Sequence[ops.LayerCache]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; `layers` get the tokens' keys, values and convolutions' inputs."""
    x = ops.rms_norm(ops.embedding(weights.embed, tokens), weights.embed_norm, config.norm_eps, wide=True)
    heats = temperatures(ragged.positions, config)
    for i, (layer, cache) in enumerate(zip(weights.layers, layers, strict=True)):
        seen = attention(ops.rms_norm(x, layer.input_norm, config.norm_eps), layer, cache, heats, config, i)
        x = ops.scale(convolved(seen, layer.attended_taps, conv_state(cache, 2)), 1.0, residual=x)
        hidden = mlp(ops.rms_norm(x, layer.mlp_norm, config.norm_eps), layer, config)
        x = ops.scale(convolved(hidden, layer.mlp_taps, conv_state(cache, 3)), 1.0, residual=x)
    return ops.rms_norm(x, weights.norm, config.norm_eps)


def temperatures(positions: np.ndarray, config: Config) -> np.ndarray | None:
    """[T]: 1 + alpha * ln((i + 1) / floor) from position `floor` on, 1 before; None: all are 1.

    The logarithm is `decimal`'s, correctly rounded everywhere; a step has few positions beyond the floor, or much else
    to do.
    """
    floor = config.log_floor
    if floor is not None and not isinstance(positions, np.ndarray):
        return ops.at_positions(positions, temperatures_up_to, (config.context_length, floor, config.log_alpha))
    if floor is None or not (positions >= floor).any():
        return None
    heats = np.ones(len(positions), np.float32)
    beyond = positions[positions >= floor].tolist()
    heats[positions >= floor] = np.array(temperatures_of(beyond, floor, config.log_alpha), np.float32)
    return heats


def temperatures_of(positions: Iterable[int], floor: int, alpha: float) -> list[float]:
    """Of positions beyond the floor."""
    with localcontext(Context(prec=30)):
        scale = Decimal(alpha)
        return [float(1 + scale * (Decimal(position + 1) / floor).ln()) for position in positions]


def temperatures_up_to(length: int, floor: int, alpha: float) -> np.ndarray:
    """[length]: of all positions, as float32."""
    beyond = temperatures_of(range(floor, length), floor, alpha)
    return np.array([1.0] * (length - len(beyond)) + beyond, np.float32)


def attention(
    x: np.ndarray, layer: Any, cache: ops.LayerCache, heats: np.ndarray | None, config: Config, number: int
) -> np.ndarray:
    """The layer's attention of x [T, E], through its output matrix."""
    kind, local = config.heads(number), config.is_local[number]
    q, k, v, r = kind.cut(ops.linear(x, layer.qkvr))
    k = convolved(k, layer.key_taps, conv_state(cache, 0)).reshape(len(x), kind.num_kv_heads, kind.size)
    v = convolved(v, layer.value_taps, conv_state(cache, 1)).reshape(k.shape)
    keys = keys_of(cache)
    ops.store_kv(keys, ops.rms_norm(k, layer.k_norm, config.norm_eps), v)
    q = ops.rms_norm(q.reshape(len(x), kind.num_heads, kind.size), layer.q_norm, config.norm_eps)
    if heats is not None and not local:
        q, r = ops.scale(q.reshape(len(x), -1), heats).reshape(q.shape), ops.scale(r, heats)
    bias = (r.reshape(len(x), kind.num_heads, config.bias_size), layer.bias_profile)
    seen = ops.attention(q, keys, 1 / kind.size, window=config.window if local else None, bias=bias)
    return ops.linear(seen, layer.out)


def convolved(u: np.ndarray, taps: np.ndarray, state: ops.ConvState) -> np.ndarray:
    """u + its own short convolution; the sequence's last inputs are read, then replaced."""
    return ops.convolved(u, taps, state, residual=True)


def mlp(x: np.ndarray, layer: Any, config: Config) -> np.ndarray:
    """The dense MLP times its scale, or the mixture."""
    if layer.router is None:
        return ops.scale(ops.linear(ops.gated_linear(x, layer.gate_up), layer.down), layer.dense_scale)
    shared, top = config.num_shared, config.experts_per_token
    scale = config.route_scale * layer.router_scale
    routed = ops.linear(x, layer.router, wide=True)
    rule = {"scores": "sigmoid", "shared": shared, "bias": layer.router_bias, "scale": scale}
    chosen, gammas = ops.route(routed, top, **rule)
    y = ops.experts(x, layer.experts_gate_up, layer.experts_down, chosen, ops.columns(gammas, top)[0])
    own = ops.take_columns(gammas, top + config.shared_of_column)
    hidden = ops.gated(ops.gated_linear(x, layer.shared_gate_up), own)
    return ops.linear(hidden, layer.shared_down, residual=y)


def logits(weights: Parameters, config: Config, hidden_rows: np.ndarray) -> np.ndarray:
    """[R, E] -> [R, V]: the padding of the vocabulary never leaves this function."""
    found = ops.linear(ops.scale(hidden_rows, 1 / config.width_multiplier), weights.head, wide=True)
    return ops.leading(found, config.vocab_size)  # type: ignore[no-any-return]
