"""Classifier of the judge: a small convolutional network that reads every attribute of a scene off an image."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from shared.models.scenes import VALUES

FILE = "model.safetensors"
Judge = Callable[[npt.NDArray[np.uint8]], dict[str, list[str]]]


@dataclass(frozen=True)
class Reading:
    """The classifier's output for images: each attribute's values as words, and the probability of each object."""

    words: dict[str, list[str]]
    certainty: list[float]


Reader = Callable[[npt.NDArray[np.uint8]], Reading]


class JudgeNet(nn.Module):
    """Network from images (B, 3, height, width) in −1…1 of any size to one row of scores per attribute.

    Two coordinate channels encode positions. Images are not resized, since an object's size is its side in pixels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _stage(5, 32, stride=2), _stage(32, 64, stride=1), _stage(64, 80, stride=2), _stage(80, 112, stride=1),
            _stage(112, 128, stride=2), _stage(128, 128, stride=1),
        )  # fmt: skip
        self.heads = nn.ModuleDict({name: nn.Linear(256, len(values)) for name, values in VALUES.items()})

    def forward(self, pictures: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return scores (B, number of values) by attribute."""
        b, _, h, w = pictures.shape
        x = torch.linspace(-1, 1, w, device=pictures.device).expand(b, 1, h, w)
        y = torch.linspace(-1, 1, h, device=pictures.device).view(h, 1).expand(b, 1, h, w)
        found = self.body(torch.cat([pictures, x.to(pictures.dtype), y.to(pictures.dtype)], dim=1))
        pooled = torch.cat([found.mean(dim=(2, 3)), found.amax(dim=(2, 3))], dim=1)
        return {name: head(pooled) for name, head in self.heads.items()}


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(8, outputs), nn.SiLU(inplace=True)
    )


def save_judge(net: JudgeNet, folder: Path) -> None:
    """Write the network's weights (fp16 safetensors) and the values of its heads."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.half().contiguous() for name, tensor in net.state_dict().items()}
    save_file(weights, folder / FILE, metadata={"values": json.dumps({k: list(v) for k, v in VALUES.items()})})


def judge_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights in `folder` in float32; ValueError if they were trained on other values than the grammar's."""
    with safe_open(folder / FILE, framework="pt") as file:
        values = json.loads(file.metadata()["values"])
        if values != {name: list(allowed) for name, allowed in VALUES.items()}:
            raise ValueError(f"judge in {folder}: its values must be the grammar's (got {values}); train it again")
        return {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - not a dict


def load_judge(folder: Path) -> Judge:
    """Load the judge in `folder`: from images (B, height, width, 3) uint8 to each attribute's values, as words.

    Raise the errors of `judge_weights`.
    """
    reader = load_reader(folder)
    return lambda pictures: reader(pictures).words


def load_reader(folder: Path) -> Reader:
    """Load the judge in `folder` with the object's probability; raise the errors of `judge_weights`."""
    net = JudgeNet()
    net.load_state_dict(judge_weights(folder))
    return reader_of(net.eval())


def reader_of(net: JudgeNet) -> Reader:
    """Wrap a network on the CPU as a reader of images."""

    @torch.no_grad()
    def read(pictures: npt.NDArray[np.uint8]) -> Reading:
        scores = net(torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1)
        words = {name: [str(VALUES[name][int(i)]) for i in found.argmax(1)] for name, found in scores.items()}
        return Reading(words, scores["object"].softmax(1).amax(1).tolist())

    return read
