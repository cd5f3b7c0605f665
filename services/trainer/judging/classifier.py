"""The judge's classifier: a small convolutional network that reads every attribute of a scene off a picture."""

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
    """What the classifier says of pictures: each attribute's values as words, and how probable it finds its object."""

    words: dict[str, list[str]]
    certainty: list[float]


Reader = Callable[[npt.NDArray[np.uint8]], Reading]


class JudgeNet(nn.Module):
    """Pictures (B, 3, height, width) in −1…1 to one row of scores per attribute; any size of picture.

    Two coordinate channels tell it where things are; sides in pixels are kept, since that is what size means here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _stage(5, 32, stride=2), _stage(32, 64, stride=1), _stage(64, 80, stride=2), _stage(80, 112, stride=1),
            _stage(112, 128, stride=2), _stage(128, 128, stride=1),
        )  # fmt: skip
        self.heads = nn.ModuleDict({name: nn.Linear(256, len(values)) for name, values in VALUES.items()})

    def forward(self, pictures: torch.Tensor) -> dict[str, torch.Tensor]:
        """Scores (B, number of values) by attribute."""
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
    """Write the network's weights (fp16 safetensors) with the values its heads stand for."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.half().contiguous() for name, tensor in net.state_dict().items()}
    save_file(weights, folder / FILE, metadata={"values": json.dumps({k: list(v) for k, v in VALUES.items()})})


def judge_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights in `folder`, float32; ValueError when the file was trained on other values than the grammar's."""
    with safe_open(folder / FILE, framework="pt") as file:
        values = json.loads(file.metadata()["values"])
        if values != {name: list(allowed) for name, allowed in VALUES.items()}:
            raise ValueError(f"judge in {folder}: values must be the grammar's, not {values}")
        return {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - not a dict


def load_judge(folder: Path) -> Judge:
    """The judge in `folder`: pictures (B, height, width, 3) uint8 to each attribute's values, as words.

    Raises what `judge_weights` raises.
    """
    reader = load_reader(folder)
    return lambda pictures: reader(pictures).words


def load_reader(folder: Path) -> Reader:
    """The judge in `folder`, saying also how sure it is of the object; raises what `judge_weights` raises."""
    net = JudgeNet()
    net.load_state_dict(judge_weights(folder))
    return reader_of(net.eval())


def reader_of(net: JudgeNet) -> Reader:
    """A network on the CPU as a reader of pictures."""

    @torch.no_grad()
    def read(pictures: npt.NDArray[np.uint8]) -> Reading:
        scores = net(torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1)
        words = {name: [str(VALUES[name][int(i)]) for i in found.argmax(1)] for name, found in scores.items()}
        return Reading(words, scores["object"].softmax(1).amax(1).tolist())

    return read
