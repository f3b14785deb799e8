"""GPU bodies of the operations, in Triton. The fronts in `zerokl.ops` come here when they are given torch tensors.

Importing this needs the extra `zerokl[cuda]`. Activations and weights are bfloat16, sums float32.
"""

from zerokl.ops.triton.attention import attention
from zerokl.ops.triton.embedding import embedding
from zerokl.ops.triton.leaves import MAX_LEAVES
from zerokl.ops.triton.matrix import pack, upload
from zerokl.ops.triton.rms_norm import rms_norm
from zerokl.ops.triton.rope import rope_table, rotate_and_store
from zerokl.ops.triton.shards import logits_of_ranks, rows_of_ranks, summed
from zerokl.ops.triton.some_heads import of_some_heads
from zerokl.ops.triton.swiglu import swiglu
from zerokl.ops.triton.ways import gated_linear, linear

__all__ = [
    "MAX_LEAVES",
    "attention",
    "embedding",
    "gated_linear",
    "linear",
    "logits_of_ranks",
    "of_some_heads",
    "pack",
    "rms_norm",
    "rope_table",
    "rotate_and_store",
    "rows_of_ranks",
    "summed",
    "swiglu",
    "upload",
]
