"""The codec of each state that this worker captures, by the setting `state_codec`."""

from __future__ import annotations

from services.gpu_worker.jobs.keyframes import Keyframes
from services.gpu_worker.jobs.residual import is_same_generator
from shared.models import ModelCard
from shared.models.k_table import Profiles
from shared.models.state_codecs import AUTO, PLAIN, CodecChoice, load_codecs
from shared.runtime.telemetry import log

NOTHING_MEASURED = CodecChoice("", "", ())


class StateCodecs:
    """Codec by model, K and T: the setting's codec, or with `auto` the one that `afterimage profile` chose."""

    def __init__(self, setting: str, profiles: Profiles, keyframes: Keyframes | None = None) -> None:
        self._setting, self._profiles = setting, profiles
        self.keyframes = keyframes or Keyframes()
        self._choices: dict[str, CodecChoice] = {}
        """What was measured, by weights hash; read once."""

    @property
    def chosen(self) -> bool:
        """Return whether the worker chooses, instead of the setting."""
        return self._setting == AUTO

    async def at(self, card: ModelCard, step: int, steps: int) -> str:
        """Return the codec of a state after `step` of `steps` steps."""
        if not self.chosen:
            return self._setting
        if card.weights_hash not in self._choices:
            self._choices[card.weights_hash] = await self._load(card)
        return self._choices[card.weights_hash].at(step, steps)

    async def _load(self, card: ModelCard) -> CodecChoice:
        if not is_same_generator():
            log("gpu_worker").warning("states are stored as fp16: this torch draws other noise for a seed", codec=PLAIN)
            return NOTHING_MEASURED
        return await load_codecs(self._profiles, card) or NOTHING_MEASURED
