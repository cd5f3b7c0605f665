"""Tenants: what they share with others, and how much of the service each may take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from shared.domain.errors import InvalidRequestError
from shared.domain.identity import NAME, Rate, rate_of
from shared.runtime.settings.section import Names, Section

EVERY = "*"
"""Stands for every tenant."""


def _rate(value: object) -> object:
    """Read a text such as `20/s`."""
    try:
        return rate_of(value) if isinstance(value, str) else value
    except InvalidRequestError as error:
        raise ValueError(error.rule) from None


class TenantLimits(BaseModel):
    """What one tenant may take; None: no limit."""

    model_config = ConfigDict(frozen=True)

    rate: Annotated[Rate, BeforeValidator(_rate)] | None = None
    """Calls under its keys and tokens: those of ten seconds at once."""
    calls: int | None = Field(None, ge=1)
    """Calls under its keys and tokens that are open at once, streams included."""
    jobs: int | None = Field(None, ge=1)
    """Jobs that wait or run."""
    pixel_steps: int | None = Field(None, ge=1)
    """Frames × pixels × steps of these jobs."""
    kept_jobs: int | None = Field(None, ge=1)
    """Jobs that are kept after their end, exact repeats included; the oldest expire before `results_keep_s`."""
    cache_bytes: int | None = Field(None, ge=0)
    """Bytes of its latents, images and masks in the cache."""

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            raise ValueError(f"must be limits by name: {', '.join(cls.model_fields)}")
        for name in given:
            if name not in cls.model_fields:
                raise ValueError(f"has no limit {name}; the limits are {', '.join(cls.model_fields)}")
        return given


class Tenants(Section):
    """Tenants."""

    public_tenants: Names = Field(
        (),
        description="Tenants that start from public entries of others, and whose keys with the role `publisher` may "
        "write such entries; `*` for all. Names separated by commas.",
    )
    public_crowd: int = Field(
        1,
        ge=1,
        le=100,
        description="Other tenants that must have public entries at least as similar to a request as the one it starts "
        "from. 1: its own tenant is enough. A larger value hides what a single tenant sent, lets a single tenant plant "
        "nothing, and finds fewer entries.",
    )
    tenant_limits: dict[Annotated[str, Field(pattern=rf"^(\*|{NAME.pattern})$")], TenantLimits] = Field(
        {},
        description="What one tenant may take, by its name; `*` is for every tenant, and a tenant's own limits replace "
        "those of the same name. `rate`: calls, as in `20/s`. `calls`: calls open at once, streams included. `jobs`: "
        "jobs that wait or run. `pixel_steps`: frames × pixels × steps of these jobs. `kept_jobs`: jobs, with their "
        "images, that are kept after their end; the oldest expire before `results_keep_s`. `cache_bytes`: bytes in the "
        'cache. As JSON: `{"*": {"rate": "20/s", "jobs": 50}, "acme": {"jobs": 500}}`.',
    )

    def shares(self, tenant: str) -> bool:
        """Return whether the tenant shares public entries with others."""
        return EVERY in self.public_tenants or tenant in self.public_tenants

    def crowd(self, tenant: str) -> int:
        """Return `public_crowd` for a tenant that shares public entries; 1 for the others, which see none."""
        return self.public_crowd if self.shares(tenant) else 1

    def limits_of(self, tenant: str) -> TenantLimits:
        if not self.tenant_limits:
            return NO_LIMITS
        every, own = (self.tenant_limits.get(name, NO_LIMITS) for name in (EVERY, tenant))
        return every.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


NO_LIMITS = TenantLimits()
