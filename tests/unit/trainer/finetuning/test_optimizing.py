"""Learning rate, clipping, loss scale, and checkpoints that hold whole states."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from services.trainer.finetuning.optimizing import LossScale, Updates, rate_at
from services.trainer.finetuning.ranks.group import Place
from services.trainer.finetuning.saving.checkpoints import MANIFEST, Checkpoints
from services.trainer.finetuning.settings import RunSettings
from services.trainer.finetuning.stepper import norm_of
from shared.domain.errors import ModelError, StorageFullError
from tests.unit.trainer.finetuning.conftest import settings_of


def job(iterations: int, **optimizer: object) -> RunSettings:
    return settings_of(Path(), Path(), Path(), iterations=iterations, optimizer={"rate": 1.0, **optimizer})


def test_the_rate_warms_up_and_then_falls_by_half_a_cosine() -> None:
    settings = job(110, warmup=10)
    rates = [rate_at(iteration, settings) for iteration in range(110)]
    assert rates[0] == 0.1
    assert rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.5)
    assert 0 < rates[109] < 0.001
    constant = job(10, warmup=0, schedule="constant")
    assert rate_at(0, constant) == rate_at(9, constant) == 1.0
    assert [job(iterations, warmup=-1).warmup for iterations in (20, 200, 5000)] == [2, 20, 100]


def test_the_loss_scale_halves_at_an_overflow_and_doubles_after_a_while() -> None:
    scale = LossScale(used=True)
    assert not scale.accept(float("inf"))
    assert scale.scale == 32_768
    assert all(scale.accept(1.0) for _ in range(LossScale.GROWS_AFTER))
    assert scale.scale == 65_536
    plain = LossScale(used=False)
    assert not plain.accept(float("nan"))
    assert plain.scale == 1


def updates(tmp_path: Path, **optimizer: float) -> Updates:
    torch.manual_seed(0)
    parameters = dict(nn.Linear(3, 2).named_parameters())
    return Updates(parameters, settings_of(tmp_path, tmp_path, tmp_path, optimizer=optimizer), fp16=True)


def test_an_update_undoes_the_loss_scale_and_clips_like_torch(tmp_path: Path) -> None:
    made, plain = updates(tmp_path, clip_norm=0.5), updates(tmp_path, clip_norm=0.0)
    reference = copy.deepcopy(list(plain.parameters.values()))
    scale = made.loss_scale.scale
    for one, other, third in zip(made.parameters.values(), plain.parameters.values(), reference, strict=True):
        gradient = torch.randn_like(one)
        one.grad, other.grad, third.grad = gradient * scale, gradient * scale, gradient.clone()
    norm = float(nn.utils.clip_grad_norm_(reference, 0.5))
    made._clip(norm * scale, scale)
    for one, third in zip(made.parameters.values(), reference, strict=True):
        torch.testing.assert_close(one.grad, third.grad)
    plain._clip(norm * scale, scale)
    assert norm_of(value.grad for value in plain.parameters.values()) == pytest.approx(norm)


def test_an_update_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    made = updates(tmp_path)
    before = [value.clone() for value in made.parameters.values()]
    for value in made.parameters.values():
        value.grad = torch.full_like(value, float("inf"))
    assert not made.update(0, float("inf"))
    assert made.skipped == 1
    assert all(torch.equal(one, other) for one, other in zip(before, made.parameters.values(), strict=True))
    assert all(value.grad is None for value in made.parameters.values())


def trained(tmp_path: Path, iterations: int) -> Updates:
    made = updates(tmp_path)
    for iteration in range(iterations):
        for value in made.parameters.values():
            value.grad = torch.ones_like(value)
        made.update(iteration, 1.0)
    return made


def same(one: Updates, other: Updates) -> bool:
    pairs = zip(one.tensors().items(), other.tensors().items(), strict=True)
    return all(name == its and torch.equal(value, its_value) for (name, value), (its, its_value) in pairs)


def test_a_checkpoint_has_weights_average_and_optimizer_and_the_last_few_are_kept(tmp_path: Path) -> None:
    made = trained(tmp_path, 3)
    store = Checkpoints(tmp_path / "checkpoints", Place(), keep=2)
    for iterations in (1, 2, 3):
        store.save(iterations, made.tensors(), {"iterations": iterations} | made.state())
    assert sorted(path.name for path in store.folder.iterdir()) == ["00000002", "00000003"]
    fresh = updates(tmp_path)
    progress, broken = store.load(fresh.tensors())
    assert (progress, broken) == ({"iterations": 3} | made.state(), [])
    assert same(fresh, made)
    fresh.restore(made.state())
    for one in (fresh, made):
        for value in one.parameters.values():
            value.grad = torch.full_like(value, 0.5)
        one.update(3, 1.0)
    assert same(fresh, made)


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "manifest"])
def test_a_broken_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path, damage: str) -> None:
    store = Checkpoints(tmp_path / "checkpoints", Place(), keep=3)
    store.save(2, trained(tmp_path, 2).tensors(), {"iterations": 2})
    store.save(4, trained(tmp_path, 4).tensors(), {"iterations": 4})
    file = next((store.folder / "00000004").glob("*.distcp"))
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[:-10])
    elif damage == "gone":
        file.unlink()
    else:
        (store.folder / "00000004" / MANIFEST).write_text("{")
    fresh = updates(tmp_path)
    progress, broken = store.load(fresh.tensors())
    assert progress == {"iterations": 2}
    assert len(broken) == 1
    assert broken[0].startswith(f"checkpoint {store.folder / '00000004'} is broken: ")
    assert same(fresh, trained(tmp_path, 2))
    Checkpoints(store.folder, Place(), keep=1).save(3, trained(tmp_path, 3).tensors(), {"iterations": 3})
    progress, _ = store.load(fresh.tensors())
    assert progress == {"iterations": 3}  # the broken one is not counted among those that are kept
    store.save(4, trained(tmp_path, 4).tensors(), {"iterations": 4})  # written again in its place
    assert store.load(fresh.tensors()) == ({"iterations": 4}, [])


def test_where_no_checkpoint_can_be_read_none_is_lost(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path / "checkpoints", Place(), keep=3)
    for iterations in (2, 4):
        store.save(iterations, trained(tmp_path, iterations).tensors(), {"iterations": iterations})
        next((store.folder / f"0000000{iterations}").glob("*.distcp")).write_bytes(b"of another version")
    with pytest.raises(ModelError, match=r"none of 2 checkpoints can be read; remove .* to begin the run again"):
        store.load(updates(tmp_path).tensors())
    assert sorted(path.name for path in store.folder.iterdir()) == ["00000002", "00000004"]


def test_another_precisions_loss_scale_is_not_taken_over() -> None:
    half = LossScale(used=True)
    half.load(LossScale(used=False).state())
    assert half.scale == 65_536
    half.accept(float("inf"))
    again = LossScale(used=True)
    again.load(half.state())
    assert again.scale == half.scale == 32_768


def test_a_write_that_was_killed_leaves_no_checkpoint(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path / "checkpoints", Place(), keep=3)
    (store.folder / "00000002.partial").mkdir(parents=True)
    (store.folder / "00000002.partial" / "__0_0.distcp").write_bytes(b"half")
    fresh = updates(tmp_path)
    before = [value.clone() for value in fresh.tensors().values()]
    assert store.load(fresh.tensors()) == (None, [])
    assert all(torch.equal(one, other) for one, other in zip(before, fresh.tensors().values(), strict=True))
    store.save(2, fresh.tensors(), {"iterations": 2})
    assert [path.name for path in store.folder.iterdir()] == ["00000002"]
    (tmp_path / "file").touch()
    store = Checkpoints(tmp_path / "file" / "checkpoints", Place(), keep=3)
    with pytest.raises(StorageFullError, match=r"checkpoint \S+/00000002 cannot be written: .*Not a directory"):
        store.save(2, fresh.tensors(), {"iterations": 2})
