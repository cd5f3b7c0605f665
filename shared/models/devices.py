"""Where models run."""

from __future__ import annotations

from shared.domain.errors import ConfigurationError
from shared.runtime.settings import Settings


def chosen_device(name: str) -> str:
    """What a `device` setting names, as torch takes it; `auto` is a GPU where there is one, else the CPU.

    Raises ConfigurationError for what is no device, and for a GPU that is not here.
    """
    if name == "cpu":
        return name
    import torch  # settings are read where there is no torch, too

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if gpus else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigurationError(f"device: must be auto, cpu, cuda or cuda:N (got {name!r})") from None
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigurationError(
            f"device: no {name} here, torch {torch.__version__} finds {gpus} GPUs; auto takes what is"
        )
    return name


def placed(settings: Settings) -> Settings:
    """The same with the device that `auto` means here: what a model's card says follows it. Raises ConfigurationError
    as `chosen_device` does.
    """
    return settings.model_copy(update={"device": chosen_device(settings.device)})
