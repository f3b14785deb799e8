"""GPU bodies of the operations, in Triton. The fronts in `zerokl.ops` come here when they are given torch tensors.

Importing this needs the extra `zerokl[cuda]`. Activations and weights are bfloat16, sums float32.
"""

from zerokl.ops.triton.attention import attention
from zerokl.ops.triton.convolution import convolved
from zerokl.ops.triton.elementwise import gated, geglu, gelu, scale, sigmoid_of, softcap
from zerokl.ops.triton.embedding import embedding
from zerokl.ops.triton.experts import experts
from zerokl.ops.triton.kv import store_kv
from zerokl.ops.triton.layer_norm import layer_norm
from zerokl.ops.triton.leaves import MAX_LEAVES
from zerokl.ops.triton.matrix import joined, pack, pack_quantised, packed_leaves, under_each_other, upload
from zerokl.ops.triton.recurrence import gated_delta, selective_scan, time_steps
from zerokl.ops.triton.rms_norm import rms_norm
from zerokl.ops.triton.rope import rope_table, rotate_and_store
from zerokl.ops.triton.route import route
from zerokl.ops.triton.shards import experts_of_ranks, logits_of_ranks, rows_of_ranks, summed
from zerokl.ops.triton.some_heads import of_some_heads
from zerokl.ops.triton.swiglu import swiglu
from zerokl.ops.triton.ways import gated_linear, linear

__all__ = [
    "MAX_LEAVES",
    "attention",
    "convolved",
    "embedding",
    "experts",
    "experts_of_ranks",
    "gated",
    "gated_delta",
    "gated_linear",
    "geglu",
    "gelu",
    "joined",
    "layer_norm",
    "linear",
    "logits_of_ranks",
    "of_some_heads",
    "pack",
    "pack_quantised",
    "packed_leaves",
    "rms_norm",
    "rope_table",
    "rotate_and_store",
    "route",
    "rows_of_ranks",
    "scale",
    "selective_scan",
    "sigmoid_of",
    "softcap",
    "store_kv",
    "summed",
    "swiglu",
    "time_steps",
    "under_each_other",
    "upload",
]
