"""Muon for matrices and convolutions: momentum, made near-orthogonal before it is applied."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from services.trainer.training.runs import fast_in_bfloat16


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) over parameters of two or more dimensions, each seen as (out, rest).

    The update is scaled to the root mean square of an AdamW step (0.2·√max(out, rest)), so AdamW's rates carry over.
    torch's own Muon takes matrices only.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure: nothing here re-evaluates
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 1 - group["momentum"])
                ahead = parameter.grad.lerp(mean, group["momentum"])
                update = orthogonalised(ahead.flatten(1)).view_as(parameter)
                scale = 0.2 * max(update.shape[0], update[0].numel()) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * scale)


def orthogonalised(matrix: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Return a nearby matrix with singular values around 1, by a quintic Newton–Schulz iteration.

    Every iterate is a polynomial of the Gram matrix times the matrix. So for wide matrices (kernels) only the small
    square matrix is iterated, at a fifth of the plain form's cost.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    rows = x.shape[0]
    if x.shape[1] < 2 * rows:
        y = x.bfloat16() if fast_in_bfloat16(x.device) else x
        for _ in range(iterations):
            gram = y @ y.T
            y = _A * y + (_B * gram + _C * gram @ gram) @ y
        found = y.to(matrix.dtype)
    else:
        gram, product, eye = x @ x.T, None, torch.eye(rows, device=x.device)
        for _ in range(iterations):
            factor = _A * eye + _B * gram + _C * gram @ gram
            product = factor if product is None else factor @ product
            gram = factor @ gram @ factor
        found = product @ x
    return found.T if tall else found


_A, _B, _C = 3.4445, -4.7750, 2.0315
