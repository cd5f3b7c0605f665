"""Uses of states that the maintainer has received and not yet written to the catalog."""

from __future__ import annotations

from shared.catalog import Catalog
from shared.domain.errors import passes


class Uses:
    """One (entry id, step, time) for each job that started from a state."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._waiting: list[tuple[str, int, float]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entry_id: str, step: int, at: float) -> None:
        self._waiting.append((entry_id, step, at))

    async def write(self) -> None:
        """Add the uses to the catalog's counts. Counts only grow, so a former leader may still write them."""
        uses, self._waiting = self._waiting, []
        try:
            if uses:
                await self._catalog.entries.used(uses)
        except BaseException as error:
            if not isinstance(error, Exception) or passes(error):  # other errors would repeat forever
                self._waiting = uses + self._waiting
            raise
