"""Devices that models run on."""

from __future__ import annotations

import threading

from shared.domain.errors import ConfigurationError
from shared.runtime.settings import Settings


def chosen_device(name: str) -> str:
    """Return a `device` setting as torch takes it; `auto` is a GPU if there is one, else the CPU.

    Raise ConfigurationError for an unknown device, and for a GPU that this machine lacks.
    """
    if name == "cpu":
        return name
    import torch  # settings are also read without torch installed

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if gpus else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigurationError(f"device: must be auto, cpu, cuda or cuda:N (got {name!r})") from None
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigurationError(
            f"device: this machine has no {name} (torch {torch.__version__} finds {gpus} GPUs); set auto or cpu"
        )
    return name


def placed(settings: Settings) -> Settings:
    """Return the settings with `auto` replaced by this machine's device, on which model cards depend.

    Raise ConfigurationError like `chosen_device`.
    """
    return settings.model_copy(update={"device": chosen_device(settings.device)})


def single_threaded(threads: int = 1) -> None:
    """Limit torch to one thread, or `threads`, in the calling thread; leave the default of later threads unchanged.

    A prompt is too little work to split, and the other cores belong to the denoiser. torch keeps one count per thread
    and one for future threads; the second thread here restores the latter.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    restore = threading.Thread(target=torch.set_num_threads, args=(before,))
    restore.start()
    restore.join()
