"""Choice of the segmentation model by the setting `segmenter`, recognised by the configuration in its folder."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError

from services.segmenter.models import Segmenter
from shared.domain.errors import ModelError
from shared.models.folders import NotHereError, transformers_folder

PAIR = "+"
"""Sign between the detector and SAM in the setting: `detector+sam`."""
SETTING = "segmenter"
KNOWN = "clipseg, sam3, sam3_video, or grounding-dino and sam as DETECTOR+SAM"


def check_segmenter(name: str) -> None:
    """Raise ModelError unless the setting names models that may be segmenters, without loading or fetching them."""
    with suppress(NotHereError):  # a hub id is fetched with the first clip
        _kinds(name, [transformers_folder(part, SETTING, fetch=False) for part in name.split(PAIR)])


def open_segmenter(name: str, device: str = "cpu") -> Segmenter:
    """Load the model that the setting names; fetch a hub id on first use. Raise ModelError with the cause."""
    folders = [transformers_folder(part, SETTING) for part in name.split(PAIR)]
    kinds = _kinds(name, folders)
    try:
        match kinds:
            case ["clipseg"]:
                from services.segmenter.models.clipseg import ClipSeg

                return ClipSeg(folders[0], device)
            case ["grounding-dino", "sam"]:
                from services.segmenter.models.langsam import LangSam

                return LangSam(folders[0], folders[1], device)
            case ["sam3"]:
                from services.segmenter.models.sam3 import Sam3

                return Sam3(folders[0], device)
            case _:
                from services.segmenter.models.sam3 import Sam3Tracker

                return Sam3Tracker(folders[0], device)
    except ImportError as error:  # SAM 3 needs a recent transformers
        raise ModelError(
            f"segmenter {name!r}: {' and '.join(kinds)} needs packages that are missing ({error}); install them"
        ) from error
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"segmenter {name!r}: cannot be loaded ({error}); check the folder's files") from error


def _kinds(name: str, folders: list[Path]) -> list[str]:
    """Return each folder's model type; raise ModelError unless together they are a segmenter."""
    kinds = [str(json.loads((folder / "config.json").read_text()).get("model_type")) for folder in folders]
    if kinds not in (["clipseg"], ["sam3"], ["sam3_video"], ["grounding-dino", "sam"]):
        raise ModelError(f"segmenter {name!r}: the model types must be {KNOWN} (got {PAIR.join(kinds)})")
    if kinds[0].startswith("sam3") and find_spec("torchvision") is None:
        raise ModelError(f"segmenter {name!r}: SAM 3 needs torchvision, which is missing; install it")
    return kinds
