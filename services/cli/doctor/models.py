"""Checks of the models: their cards and files, the encoder, and the memory of the device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from services.cli.doctor.findings import Check, Finding, ok, warning, wrong
from services.cli.embedded import found_running
from services.cli.model_sheet import reuse
from services.cli.models import counted, folder_here
from shared.domain.errors import AfterimageError
from shared.models import ModelCard, checkpoint
from shared.models.card_lookup import card_for, find_card, given_models, served_cards
from shared.models.folders import NotHereError
from shared.models.memory import largest_batch, said
from shared.runtime.datadir import works_in_data_dir
from shared.runtime.settings import Settings

LIMIT_S = 120.0
"""Seconds of one model: its weights are hashed where a K table may apply to them."""


def model_checks(settings: Settings) -> list[Check]:
    each = [
        Check(f"model {role}", LIMIT_S, partial(_model, f"model {role}", name, settings))
        for role, name in given_models(settings)
    ]
    return [
        Check("encoder", LIMIT_S, partial(_encoder, settings)),
        *each,
        Check("memory", LIMIT_S, partial(_memory, settings)),
    ]


def _encoder(settings: Settings) -> Iterator[Finding]:
    from services.embedder.encoder import encoder_folder, encoder_id

    try:
        folder = encoder_folder(settings.encoder, fetch=False)
    except NotHereError:
        yield warning("encoder", f"{settings.encoder} is not on this disk", "the first start fetches it")
        return
    yield ok("encoder", f"{settings.encoder}: {encoder_id(folder).hash}")


def _model(check: str, name: str, settings: Settings) -> Iterator[Finding]:
    if (card := _card(name, settings)) is None:
        yield warning(check, f"{name} is not on this disk", "the first start fetches it")
        return
    if card.is_noop:
        yield ok(check, f"{name} loads no weights")
        return
    if (folder := folder_here(card)) is None:
        yield warning(check, f"{card.name}: {card.path} is not on this disk", "the first start fetches it")
    elif faults := checkpoint.faults(folder):
        yield wrong(check, f"{card.name}: {folder} is not whole: {faults}", "copy or fetch these files again")
    else:
        by = reuse(card, settings.model_copy(update={"large": name}))
        fact = f"{card.name}: {card.family}, whole, weights {card.weights_hash[:12]}"
        if by.startswith("by "):
            yield ok(check, f"{fact}; reuse {by}")
        elif by.startswith("not known"):
            yield warning(check, f"{fact}; reuse {by}")
        else:
            yield warning(check, f"{fact}; {by}", "until then, its requests start from noise")


def _card(name: str, settings: Settings) -> ModelCard | None:
    """Return the model's card; None for a hub id whose card is not known before its configurations are fetched."""
    return card_for(name, settings) if find_card(name, data_dir=settings.data_dir).family else None


def _memory(settings: Settings) -> Iterator[Finding]:
    try:
        missing = any(_card(name, settings) is None for _, name in given_models(settings))
    except AfterimageError:  # the check of that model says why
        yield warning("memory", "not checked: a model cannot be served")
        return
    if missing:
        yield warning("memory", "not checked: a model is not on this disk")
        return
    import torch

    from services.gpu_worker.models.free_memory import free_bytes
    from shared.models.devices import placed

    settings = placed(settings)
    cards = [_with_counts(card) for card in served_cards(settings).values() if not card.is_noop]
    free, needs = free_bytes(torch.device(settings.device)), [largest_batch(card) for card in cards]
    if free is None or not needs or settings.offload == "sequential":
        why = (
            "offload=sequential" if settings.offload == "sequential" else "unknown on this system" if needs else "none"
        )
        yield ok("memory", f"no estimate: {why}")
        return
    weights = sum(need.weights for need in needs)
    weights = settings.workers * (min(weights, settings.resident_bytes) if settings.resident_bytes else weights)
    whole = weights + settings.workers * max(max(need.batch, need.decoding) for need in needs)
    if settings.offload == "model":
        weights = whole = settings.workers * max(need.by_turns for need in needs)
    held = works_in_data_dir(settings) and found_running(settings.data_dir) is not None
    yield from compared(weights, whole, free, "GPU" if settings.device.startswith("cuda") else "machine", held=held)


def compared(weights: int, whole: int, free: int, where: str, *, held: bool) -> Iterator[Finding]:
    """Compare bytes of weights, and of weights with a batch, with the free bytes; held: a process has them already."""
    fact = f"the models need {said(weights)} for weights, {said(whole)} with a batch; the {where} has {said(free)} free"
    do = "set offload=model, a smaller dtype, fewer workers or models, or free memory"
    if held:
        yield ok("memory", f"{fact} beside the running process")
    elif weights > free:
        yield wrong("memory", fact, do)
    elif whole > free:
        yield warning("memory", fact, f"{do}; activations are estimates")
    else:
        yield ok("memory", fact)


def _with_counts(card: ModelCard) -> ModelCard:
    return counted(card, folder_here(card))


def check_gpu(settings: Settings) -> Iterator[Finding]:
    """Check that torch sees the GPUs that the setting `device` needs, and runs on them."""
    check = "GPU"
    if settings.device == "cpu":
        yield ok(check, "device=cpu uses none")
        return
    import torch

    from shared.models.devices import chosen_device

    driver, build = os.path.exists("/proc/driver/nvidia/version"), torch.version.cuda
    if driver and not build:
        said_so = "this machine has an NVIDIA driver, and torch is built without CUDA"
        yield warning(check, f"{said_so} (torch {torch.__version__})", "install torch with CUDA, as pytorch.org says")
    elif driver and not torch.cuda.is_available():
        yield wrong(check, f"torch {torch.__version__} cannot use the driver: {_why_no_gpu()}", "update the driver")
    device = chosen_device(settings.device)  # raises what a start raises
    if not device.startswith("cuda"):
        yield ok(check, f"none found by torch {torch.__version__}: models run on the CPU")
        return
    for number in range(torch.cuda.device_count()):
        facts, (free, _) = torch.cuda.get_device_properties(number), torch.cuda.mem_get_info(number)
        name, compiled = f"sm_{facts.major}{facts.minor}", torch.cuda.get_arch_list()
        fact = f"cuda:{number} {facts.name}, {said(free)} of {said(facts.total_memory)} free, CUDA {build}"
        if any(runs_on(arch, facts.major, facts.minor) for arch in compiled):
            yield ok(check, fact)
        else:
            built = f"torch {torch.__version__} is built for {', '.join(compiled)}"
            yield wrong(check, f"{fact}, {name}: {built}", "install a build of torch for this GPU")


def runs_on(arch: str, major: int, minor: int) -> bool:
    """Return whether code for `arch`, sm_90 or compute_90, runs on a GPU of this compute capability.

    Binaries run within one major version; compute_ code is compiled for any later GPU.
    """
    kind, _, number = arch.rstrip("af").partition("_")
    built = divmod(int(number), 10)
    return built <= (major, minor) and (kind == "compute" or built[0] == major)


def _why_no_gpu() -> str:
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return "it lists no GPU"
