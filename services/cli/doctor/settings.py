"""Checks of the settings: wrong values, unknown names, and combinations that cannot work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from services.cli.doctor.findings import Finding, ok, warning, wrong
from shared.domain.errors import ConfigurationError
from shared.runtime.addresses import check_address, target_of
from shared.runtime.settings import Settings
from shared.runtime.settings_names import PREFIX, WRONG, every_in_words, misspelt

NAME = "settings"
_LEFT_OUT = warning(NAME, "checks that need the settings are left out")
CALLED = ("embedder", "match_predictor", "retriever", "text_extractor", "cache_maintainer", "global_monitor")
"""Services whose addresses are settings."""


def read_settings(data_dir: Path | None = None) -> tuple[Settings | None, list[Finding]]:
    """Return the settings of the environment, with the default of each wrong one, and findings about the wrong ones.

    The settings are None if the rest breaks a rule too.
    """
    given: dict[str, Any] = {"data_dir": data_dir} if data_dir else {}
    try:
        return Settings(**given), []
    except WRONG as error:
        found = [wrong(NAME, said, "correct the variable; docs/reference/settings.md has its values")
                 for said in every_in_words(error)]  # fmt: skip
        if isinstance(error, SettingsError):
            return None, [*found, _LEFT_OUT]
        names = {str(each["loc"][0]) for each in error.errors() if each["loc"]} & Settings.model_fields.keys()
        defaults = {name: Settings.model_fields[name].get_default(call_default_factory=True) for name in names}
    try:
        settings = Settings(**defaults | given)
    except ValidationError:
        return None, [*found, _LEFT_OUT]
    return settings, [*found, warning(NAME, f"the checks below take the default of {', '.join(sorted(names))}")]


def check_settings(settings: Settings, environment: Mapping[str, str], broken: list[Finding]) -> Iterator[Finding]:
    yield from broken
    unread = [warning(NAME, line) for line in misspelt(environment)]
    combined = list(_combinations(settings))
    yield from (*unread, *combined)
    if not (broken or unread or combined):
        given = sum(name.upper().startswith(PREFIX) for name in environment)
        yield ok(NAME, f"{given} {PREFIX}… variable{'' if given == 1 else 's'}, the rest are defaults")


def _combinations(settings: Settings) -> Iterator[Finding]:
    for name, address in (
        ("listen", settings.listen),
        ("http_listen", settings.http_listen),
        ("metrics_listen", settings.metrics_listen),
    ):
        if address:
            yield from _refused(check_address, address, name)
    if settings.metrics_listen and settings.metrics_listen == settings.listen and not settings.listen.endswith(":0"):
        yield wrong(NAME, f"listen and metrics_listen are both {settings.listen}", "give them two ports")
    for service in CALLED:
        if address := str(getattr(settings, f"{service}_address")):
            yield from _refused(target_of, address, f"{service}_address")
    inside = {"bus_url": "inprocess", "index_url": "memory", "catalog_url": "sqlite", "blobs_url": "file"}
    local = [name for name, scheme in inside.items() if str(getattr(settings, name)).startswith(scheme)]
    others = [name for name in inside if name not in local]
    if {*local} - {"blobs_url"} and others:
        yield warning(
            NAME,
            f"{', '.join(others)} name servers, and {', '.join(local)} do not: only `afterimage up` works so",
            "set all four for services in processes of their own",
        )
    if settings.set_aside and settings.scheduler != "slack":
        yield warning(NAME, f"set_aside has no effect with scheduler={settings.scheduler}", "set scheduler=slack")


def _refused(check: object, address: str, name: str) -> Iterator[Finding]:
    assert callable(check)
    try:
        check(address, name)
    except ConfigurationError as error:
        yield wrong(NAME, str(error))
