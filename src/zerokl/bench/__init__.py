"""Measuring speed: `zerokl bench serve` any server, `offline` the engine alone, `kernels` the GPU's matrix products."""
