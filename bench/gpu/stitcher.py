"""GroupNorm, SiLU and halo of patches, one by one and with the kernels of the boundary stitcher (PatchedServe §4.2.2).

    python -m bench.gpu.stitcher
    python -m bench.gpu.stitcher --tiny       # small patches, on any machine: a check of the script

The patches are those of SDXL's three levels: 512, 768 and 1024 pixels in equal shares, patches of 256 pixels. Each
figure is a median; the convolution behind is timed beside them. Without a CUDA device the command measures nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, settings_of, table

IMAGES = (2, 3, 4)
"""Patches per side of the images of 512, 768 and 1024 pixels."""
LEVELS = ((320, 32), (640, 16), (1280, 8))
"""Channels, and cells per side of a patch, of SDXL's levels."""


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[3, 6, 12], help="requests in the batch, each twice")
    parser.add_argument("--measured", type=int, default=50, help="timed runs of each, after three more")
    parser.add_argument("--tiny", action="store_true", help="one small batch, on the CPU if there is no GPU")
    asked = parser.parse_args(given)
    quiet()
    import torch

    if not torch.cuda.is_available() and not asked.tiny:
        raise SystemExit("bench.gpu.stitcher: no CUDA device here: nothing was measured (--tiny checks the script)")
    on, device = machine(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    batches, levels, runs = ([3], ((8, 4),), 3) if asked.tiny else (asked.batches, LEVELS, asked.measured)
    with torch.inference_mode():
        rows = [measured(n, *level, runs, device, dtype) for n in batches for level in levels]
    print(table([*rows[0]], [[*row.values()] for row in rows]))
    record("gpu_stitcher", {"levels": rows}, settings_of(asked) | {"dtype": str(dtype)}, on=on, folder=asked.out)


def measured(requests: int, channels: int, side: int, runs: int, device: Any, dtype: Any) -> dict[str, Any]:
    """Return milliseconds of the operators one by one, of the stitcher and of the convolution, for one level."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    from services.gpu_worker.engine.patches.batch import Current, PatchBatch
    from services.gpu_worker.engine.patches.layout import layout_of
    from services.gpu_worker.engine.patches.operators import PatchedConv2d, PatchedGroupNorm
    from services.gpu_worker.engine.patches.stitcher import kernels_for, stitched

    sizes = [IMAGES[i % len(IMAGES)] * side for i in range(requests) for _ in range(2)]  # guidance doubles the passes
    batch = PatchBatch(layout_of([(size, size) for size in sizes], side), device)
    current = Current(batch)
    norm = PatchedGroupNorm(nn.GroupNorm(min(32, channels // 2), channels), current).to(device, dtype)
    conv = PatchedConv2d(nn.Conv2d(channels, channels, 3, padding=1), current).to(device, dtype)
    patches = torch.randn(batch.layout.patches, channels, side, side, device=device, dtype=dtype)
    wide = stitched(batch, patches, norm, conv.halo)
    return {
        "requests": requests,
        "patches": batch.layout.patches,
        "channels": channels,
        "side": side,
        "kernels": kernels_for(patches, conv.halo) is not None,
        "one_by_one_ms": _median_ms(lambda: batch.with_halo(F.silu(norm(patches)), *conv.halo), runs),
        "stitched_ms": _median_ms(lambda: stitched(batch, patches, norm, conv.halo), runs),
        "convolution_ms": _median_ms(lambda: conv.on_wide(wide), runs),
    }


def _median_ms(run: Callable[[], Any], runs: int) -> float:
    import torch

    taken = []
    for _ in range(runs + 3):
        begun = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(1000 * (time.perf_counter() - begun))
    return quantile(taken[3:], 0.5)


if __name__ == "__main__":
    main()
