"""`afterimage models`: list the models that can be served, check one, and name others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from services.cli.connection import options
from services.cli.display.help import setting
from services.cli.display.tables import WIDE, Column, fitted
from services.cli.display.words import wide
from services.cli.embedded import settings_from
from services.cli.model_sheet import latent_shape, model_sheet
from shared.domain.errors import ModelError
from shared.models import added, checkpoint, hub, memory
from shared.models.card import is_hub_id
from shared.models.card_lookup import BUNDLED, KNOWN, bundled_cards, find_card, served_card
from shared.models.devices import placed

if TYPE_CHECKING:
    from rich.console import Console

    from shared.models import ModelCard
    from shared.runtime.settings import Settings

Model = Annotated[str, typer.Argument(help="A name of `models list`, a folder in diffusers' layout, or a hub id.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Data directory that keeps the added names; give `up` the same one.")
]

LISTED = (
    Column("model"),
    Column("where", least=16),
    Column("here"),
    Column("family", least=8),
    Column("size", leave=1),
    Column("latent", leave=6),
    Column("T", leave=4, right=True),
    Column("guidance", leave=5, right=True),
    Column("dtype", leave=3),
    Column("weights", leave=1, right=True),
    Column("memory", leave=2, right=True),
)

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Find a model to serve, check whether it will load, and give it a name.\n\n"
        "A model is a checkpoint in diffusers' layout whose model_index.json names one of "
        f"{', '.join(checkpoint.KINDS)}. It comes from a folder or from the hub. Only safetensors are loaded, and "
        "files on this disk are not fetched again.\n\n"
        "Typical use: [bold]models list[/bold], [bold]models check NAME[/bold], then "
        "[bold]afterimage up --large NAME[/bold]."
    ),
)


@app.command("list")
def list_models(data_dir: DataDir = None) -> None:
    """List the models that ship, those that were added, and those whose card is known.

    `here` says whether a model is on this disk. `weights` is the memory of the loaded weights. `memory` adds a batch of
    four images with guidance, or the longest clip, or decoding; it is an estimate, not a measurement. A ? means
    unknown.

    [bold]Example[/bold]

      afterimage models list
    """
    out = wide()
    out.print(models_table(settings_from(data_dir=data_dir), out.width))


@app.command("check")
def check(
    model: Model,
    run: Annotated[
        bool, typer.Option(help="Load the model and generate one image in two steps at its smallest size.")
    ] = False,
    dtype: Annotated[str | None, setting("dtype")] = None,
    device: Annotated[str | None, setting("device")] = None,
    offload: Annotated[str | None, setting("offload")] = None,
    encoder: Annotated[str | None, setting("encoder")] = None,
    data_dir: DataDir = None,
) -> None:
    """Show a model's properties, whether its family is supported, its missing files, and the memory it needs.

    `reuse` names the K table for its latents with the encoder, or the command that measures one. The command reads
    configurations and the headers of weights. It reads the weights with --run, and hashes them if a K table may apply
    to them. Of a hub id that is not on this disk and has no known card, it fetches only the configurations. --device
    has an effect only with --run. Exits with 78 when the model cannot be served as it is.

    [bold]Examples[/bold]

      afterimage models check sdxl

      afterimage models check /models/my-finetune --run --device cpu

      afterimage models check stabilityai/stable-diffusion-3.5-large --dtype bfloat16 --offload model
    """
    settings = settings_from(
        data_dir=data_dir, large=model, dtype=dtype, device=device, offload=offload, encoder=encoder
    )
    settings = placed(settings) if run else settings  # without --run torch need not be imported
    out, card = wide(), served_card(settings)
    folder = folder_here(card)
    card = counted(card, folder)
    out.print(model_sheet(card, folder, settings), highlight=False)
    if folder is None and not run:
        raise ModelError(f"model {card.name!r}: path: {card.path!r} is not on this disk; `afterimage up` fetches it")
    if folder and (wrong := checkpoint.faults(folder)) and not run:
        raise ModelError(f"model {card.name!r}: path: {folder} is not whole: {wrong}")
    if run:
        _draw(card, settings, out)


@app.command("add")
def add(
    path: Annotated[str, typer.Argument(help="A folder in diffusers' layout, or a hub id (owner/name).")],
    name: Annotated[
        str | None, typer.Option(help="Name of the model. Default: the folder's or the hub's name.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Give a checkpoint a name for `--large NAME`. Nothing is loaded or fetched.

    The name is kept in models.json of the data directory. Adding the name again replaces its path.

    [bold]Examples[/bold]

      afterimage models add /models/my-finetune

      afterimage models add Efficient-Large-Model/Sana_1600M_1024px_diffusers --name sana
    """
    settings = settings_from(data_dir=data_dir)
    folder = Path(path).expanduser()
    found = str(folder.absolute()) if folder.is_dir() else path
    card = find_card(found)  # raises ModelError for a path that is no model
    if card.is_noop:
        raise ModelError(
            f"path: {found!r} loads no weights and only waits; name a folder in diffusers' layout, or a hub id "
            "(owner/name)"
        )
    chosen = name or card.name
    if chosen in bundled_cards():
        raise ModelError(f"name: {chosen!r} ships with Afterimage; choose another with --name")
    added.add(settings.data_dir, chosen, found)
    out = wide()
    out.print(Text(f"{chosen} is {found} ({card.family or 'family not known until it is fetched'})"))
    where = options(data_dir=data_dir)
    uses = {"check": f"models check {chosen}", "try": f"demo --large {chosen}", "serve": f"up --large {chosen}"}
    for use, command in uses.items():
        out.print(Text(f"{use} it: afterimage {command}{where}"))


@app.command("remove")
def remove(name: Annotated[str, typer.Argument(help="Name that `models add` gave.")], data_dir: DataDir = None) -> None:
    """Remove a name that `models add` gave. No file of the checkpoint is deleted.

    Prints the checkpoint's folder, and the disk space that deleting the folder would free. Models that ship or are
    known cannot be removed.

    [bold]Example[/bold]

      afterimage models remove my-finetune
    """
    settings = settings_from(data_dir=data_dir)
    known = added.added(settings.data_dir)
    if name in bundled_cards() and name not in known:
        raise ModelError(f"name: {name!r} ships with Afterimage and cannot be removed; name one that `models add` gave")
    path = added.remove(settings.data_dir, name)
    out, folder = wide(), Path(path) if Path(path).is_dir() else hub.cached(path) if is_hub_id(path) else None
    others = sorted(other for other, its in known.items() if its == path and other != name)
    out.print(
        Text(f"removed the name {name}; it was {path}" + (f", which is also {', '.join(others)}" if others else ""))
    )
    if folder is not None:
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        out.print(Text(f"nothing was deleted: {folder} has {memory.said(size)}, which deleting it would free"))


def models_table(settings: Settings, width: int = WIDE) -> Table:
    """Return a table with one row per model, and its whole name."""
    return fitted(LISTED, _rows(settings), width)


def _rows(settings: Settings) -> list[list[str | Text]]:
    bundled = [_row("bundled", card) for card in bundled_cards(BUNDLED).values()]
    mine = [_added_row(settings, name, path) for name, path in added.added(settings.data_dir).items()]
    return [*bundled, *mine, *(_row(hub_id, card) for hub_id, card in KNOWN.items())]


def _row(where: str, card: ModelCard) -> list[str | Text]:
    folder = folder_here(card)
    here = "no" if folder is None else "not whole" if checkpoint.faults(folder) else "yes"
    return _whole([card.name, Text(where), here, *_figures(counted(card, folder))])


def _whole(row: list[str | Text]) -> list[str | Text]:
    return row + [""] * (len(LISTED) - len(row))


def _added_row(settings: Settings, name: str, path: str) -> list[str | Text]:
    """Return the row of an added name; a lost folder or broken checkpoint is shown in its row."""
    try:
        return _row(path, find_card(name, data_dir=settings.data_dir))
    except ModelError:
        return _whole([name, Text(path), "no", f"cannot be served: `models check {name}` says why"])


def counted(card: ModelCard, folder: Path | None) -> ModelCard:
    """Return the card with the parameter counts of the weights on this disk; unchanged if a file is broken."""
    return memory.counted(card, folder) if folder and not checkpoint.faults(folder) else card


def _figures(card: ModelCard) -> list[str]:
    if not card.family:
        return ["not known until it is fetched"]
    need = memory.largest_batch(card)
    figures = [card.family, str(card.default_size), latent_shape(card), str(card.default_steps)]
    figures += [f"{card.default_guidance:g}", card.dtype]
    return [*figures, memory.said(need.weights), memory.said(need.total if card.row_values else 0)]


def folder_here(card: ModelCard) -> Path | None:
    """Return the folder of the model's files on this disk, whole or not; None without files."""
    if card.is_noop:
        raise ModelError(
            f"model {card.name!r}: path: {card.path!r} loads no weights and only waits, so there is nothing to check"
        )
    folder = Path(card.path).expanduser()
    if folder.is_dir():
        return folder
    return hub.cached(card.path) if is_hub_id(card.path) else None


def _draw(card: ModelCard, settings: Settings, out: Console) -> None:
    from services.gpu_worker.engine.engine import Engine
    from services.gpu_worker.engine.events import Finished, Left
    from services.gpu_worker.engine.rows import Task
    from services.gpu_worker.families import load_family

    begun = time.monotonic()
    family = load_family(card, device=settings.device, offload=settings.offload)
    loaded_s = time.monotonic() - begun
    engine = Engine({card.name: family})
    size, frames = memory.smallest(card), card.frames.default
    prompt, guidance = "a red fox in the snow", card.default_guidance
    engine.submit(Task("check", card.name, prompt, size, 2, guidance, seed=7, frames=frames))
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Left):
                raise event.error
            if isinstance(event, Finished):
                took = f"two steps in {event.denoise_s:.2f} s, decoded in {event.decode_s:.2f} s"
                what = f"{size}" if frames == 1 else f"{frames} frames of {size}"
                out.print(Text(f"generated {what} on {family.device}: loaded in {loaded_s:.1f} s, {took}"))
