"""The small floats, as tables by code: exact in float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _e4m3() -> NDArray[np.float32]:
    """Bias 7, no infinity; 0x7f and 0xff are NaN."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent, np.ldexp(8.0 + fraction, exponent - 10), np.ldexp(1.0 * fraction, -9))
    values: NDArray[np.float32] = np.where(codes >> 7, -magnitude, magnitude).astype(np.float32)
    values[[0x7F, 0xFF]] = np.nan
    return values


E4M3 = _e4m3()
E4M3_NANS = (0x7F, 0xFF)
