"""How a quantised weight is stored, and what exact number it stands for.

    Blocks       GGUF's block types                      (code - zero) * scale, or code * scale + offset
    Nvfp4        four-bit floats, a scale per 16         e2m1 * (e4m3 * factor), or e2m1 * (e4m3 / divisor)
    Fp8          eight-bit floats, one scale or one per output
    Fp8Blocks    the same, a scale per 128 by 128

Each is an array of rows that can be cut and joined like any other, gives its numbers (`float32`, to the bits of the
formats' own writers) and becomes a packed matrix (`pack`) without being unpacked. `scheme.py` reads what a config says
about all weights. `docs/design/0007-quantised.md` has the decisions.
"""

from zerokl.quant.arrays import (
    BLOCK_TYPES,
    Blocks,
    Cuttable,
    Fp8,
    Fp8Blocks,
    Nvfp4,
    Quantised,
    device_experts_of,
    device_leaves_of,
    device_matrix_of,
    matrix_of,
    number_type,
    numbers_of,
    taken,
)
from zerokl.quant.scheme import Scheme, check_option, scheme_of

__all__ = [
    "BLOCK_TYPES",
    "Blocks",
    "Cuttable",
    "Fp8",
    "Fp8Blocks",
    "Nvfp4",
    "Quantised",
    "Scheme",
    "check_option",
    "device_experts_of",
    "device_leaves_of",
    "device_matrix_of",
    "matrix_of",
    "number_type",
    "numbers_of",
    "scheme_of",
    "taken",
]
