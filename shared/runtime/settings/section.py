"""The base class of the sections, and the types of their values."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode


class Section(BaseModel):
    """One frozen group of settings. `Settings` inherits the fields of all sections."""

    model_config = ConfigDict(frozen=True)


def _listed(value: object) -> object:
    """Split the text of a variable at its commas; brackets around the list are optional."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.strip().removeprefix("[").removesuffix("]").split(",") if part.strip()]


Gains = Annotated[tuple[float, float, float], NoDecode, BeforeValidator(_listed)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
Steps = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_listed)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
