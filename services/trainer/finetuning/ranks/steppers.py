"""Make the stepper of a run: one process, or several ranks as the settings or the planner say."""

from __future__ import annotations

from collections.abc import Callable

from services.trainer.finetuning.model.loaded import Loaded
from services.trainer.finetuning.ranks.choice import chosen
from services.trainer.finetuning.ranks.data_parallel import DataParallel
from services.trainer.finetuning.ranks.group import Place
from services.trainer.finetuning.saving.run_folder import RunFolder
from services.trainer.finetuning.settings import RunSettings
from services.trainer.finetuning.stepper import SingleProcess, Stepper
from services.trainer.pipeline.costs.profile_file import read_profile
from shared.domain.errors import ConfigurationError

PLAN = "plan.json"


def new_stepper(
    settings: RunSettings, model: Loaded, folder: RunFolder, place: Place, say: Callable[[str], None]
) -> Stepper:
    """Return the stepper of a run; all ranks call it. Raises ConfigurationError for a pipeline, which is not run."""
    parts = model.denoiser, model.encoders, model.objective
    micro_batch = settings.ranks.micro_batch
    if place.world == 1:
        return SingleProcess(*parts, micro_batch=micro_batch, autocast=model.autocast)
    ranks = settings.ranks
    profile = None if ranks.profile is None or ranks.parallel == "data" else read_profile(ranks.profile)
    choice = chosen(settings, place.world, profile)
    say(f"{place.world} ranks: {choice.why}")
    if choice.report is not None and place.leads:
        folder.write(PLAN, choice.report)
    if ranks.parallel == "pipeline":
        raise ConfigurationError("ranks.parallel: this version plans pipelines and runs data parallel; set data")
    if choice.plan is not None:
        say("this version runs data parallel instead")
    return DataParallel(*parts, place, micro_batch=micro_batch, autocast=model.autocast)
