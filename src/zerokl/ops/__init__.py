"""The numeric contract. Everything that rounds is in here, one operation per file.

A public function is a promise (its docstring), checks what it is given and hands it to the backend of the array's
type: numpy arrays to the native CPU kernels, torch tensors to `ops/triton`. `reference.py` is the executable oracle of
the same promises.
"""

from zerokl.ops.attention import attention
from zerokl.ops.columns import at_positions, columns, filled_like, joined, leading, take_columns
from zerokl.ops.embedding import embedding
from zerokl.ops.gate import gated, geglu, gelu, scale, sigmoid, softcap
from zerokl.ops.heads import rotate_and_store, split_heads
from zerokl.ops.kv import LayerKV, Ragged, store_kv
from zerokl.ops.layer_norm import layer_norm
from zerokl.ops.linear import gated_linear, linear
from zerokl.ops.matrix import (
    DeviceExperts,
    DeviceMatrix,
    LeafExperts,
    Matrix,
    PackedLeaves,
    PackedMatrix,
    pack,
    pack_blocks,
    pack_experts,
    pack_fp8,
    pack_nvfp4,
    pack_on_device,
    pack_stored,
    packed_leaves,
    stack,
    under_each_other,
    upload,
)
from zerokl.ops.moe import experts, route
from zerokl.ops.recurrence import gated_delta, selective_scan, time_steps
from zerokl.ops.rms_norm import rms_norm
from zerokl.ops.rope import rope, rope_table
from zerokl.ops.sample import Draw, process, sample
from zerokl.ops.score import score
from zerokl.ops.shards import AnyMatrix, Group, InputShard, VocabularyShard
from zerokl.ops.short_conv import convolved, short_conv
from zerokl.ops.state import (
    ConvState,
    DeviceStates,
    LayerCache,
    RecurrentState,
    StepStates,
    chunk_inputs,
    chunk_states,
    conv_inputs,
    store_checkpoints,
    store_conv,
    store_inputs,
    store_states,
)
from zerokl.ops.swiglu import swiglu

__all__ = [
    "AnyMatrix",
    "ConvState",
    "DeviceExperts",
    "DeviceMatrix",
    "DeviceStates",
    "Draw",
    "Group",
    "InputShard",
    "LayerCache",
    "LayerKV",
    "LeafExperts",
    "Matrix",
    "PackedLeaves",
    "PackedMatrix",
    "Ragged",
    "RecurrentState",
    "StepStates",
    "VocabularyShard",
    "at_positions",
    "attention",
    "chunk_inputs",
    "chunk_states",
    "columns",
    "conv_inputs",
    "convolved",
    "embedding",
    "experts",
    "filled_like",
    "gated",
    "gated_delta",
    "gated_linear",
    "geglu",
    "gelu",
    "joined",
    "layer_norm",
    "leading",
    "linear",
    "pack",
    "pack_blocks",
    "pack_experts",
    "pack_fp8",
    "pack_nvfp4",
    "pack_on_device",
    "pack_stored",
    "packed_leaves",
    "process",
    "rms_norm",
    "rope",
    "rope_table",
    "rotate_and_store",
    "route",
    "sample",
    "scale",
    "score",
    "selective_scan",
    "short_conv",
    "sigmoid",
    "softcap",
    "split_heads",
    "stack",
    "store_checkpoints",
    "store_conv",
    "store_inputs",
    "store_kv",
    "store_states",
    "swiglu",
    "take_columns",
    "time_steps",
    "under_each_other",
    "upload",
]
