"""`afterimage models`: which models can be served, whether one is whole and supported, and names for others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from services.cli.connection import options
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
DataDir = Annotated[Path | None, typer.Option(help="Where added names are kept; `up` must have the same.")]

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
        "Find a model to serve, see whether it will load, give it a name.\n\n"
        "A model is a checkpoint in diffusers' layout whose model_index.json names one of "
        f"{', '.join(checkpoint.KINDS)}. It comes from a folder or from the hub; only safetensors are loaded, and "
        "what is on this disk is never asked for again.\n\n"
        "A typical way: [bold]models list[/bold], [bold]models check NAME[/bold], then "
        "[bold]afterimage up --large NAME[/bold]."
    ),
)


@app.command("list")
def list_models(data_dir: DataDir = None) -> None:
    """List the models that ship, those that were added, and those whose card is known; `here`: on this disk.

    `weights` is what they take when loaded; `memory` adds a batch of four requests with guidance, or one picture being
    decoded: an estimate, counted and not measured; ? where nothing is known.

    [bold]Example[/bold]

      afterimage models list
    """
    out = wide()
    out.print(models_table(settings_from(data_dir=data_dir), out.width))


@app.command("check")
def check(
    model: Model,
    run: Annotated[bool, typer.Option(help="Load it and draw one picture in two steps at its smallest size.")] = False,
    dtype: Annotated[
        str | None, typer.Option(help="auto (the card's; on a CPU float32), float32, bfloat16, float16.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda …; with --run.")] = None,
    offload: Annotated[
        str | None,
        typer.Option(help="none; model: parts take turns on the device; sequential: layer by layer."),
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="CLIP encoder: a bundled name, a folder, or a hub id.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Say what a model is, whether its family is supported, what is missing on this disk, and what memory it needs.

    `reuse` names the K table by which its latents are reused with the encoder, or the command that measures one.
    Reads configurations and the headers of weights. The weights are read with --run, and hashed where a K table may
    count for them. Of a hub id that is not on this disk and has no known card only the configurations are fetched.
    Exit code 78 when it cannot be served as it is.

    [bold]Examples[/bold]

      afterimage models check sdxl

      afterimage models check /models/my-finetune --run --device cpu

      afterimage models check stabilityai/stable-diffusion-3.5-large --dtype bfloat16 --offload model
    """
    settings = settings_from(
        data_dir=data_dir, large=model, dtype=dtype, device=device, offload=offload, encoder=encoder
    )
    settings = placed(settings) if run else settings  # without it torch need not be imported
    out, card = wide(), served_card(settings)
    folder = _here(card)
    card = _counted(card, folder)
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
    name: Annotated[str | None, typer.Option(help="What to call it; default: the folder's or the hub's name.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Give a checkpoint a name, so that `--large NAME` finds it from then on. Nothing is loaded or fetched.

    The name is kept in models.json of the data directory; adding it again gives it another path.

    [bold]Examples[/bold]

      afterimage models add /models/my-finetune

      afterimage models add Efficient-Large-Model/Sana_1600M_1024px_diffusers --name sana
    """
    settings = settings_from(data_dir=data_dir)
    folder = Path(path).expanduser()
    found = str(folder.absolute()) if folder.is_dir() else path
    card = find_card(found)  # says what is wrong with a path that is none
    if card.is_noop:
        raise ModelError(f"path: {found!r} only waits; name a folder in diffusers' layout, or a hub id (owner/name)")
    chosen = name or card.name
    if chosen in bundled_cards():
        raise ModelError(f"name: {chosen!r} ships with Afterimage; choose another with --name")
    added.add(settings.data_dir, chosen, found)
    out = wide()
    out.print(Text(f"{chosen} is {found} ({card.family or 'family not known before it is fetched'})"))
    where = options(data_dir=data_dir)
    uses = {"check": f"models check {chosen}", "try": f"demo --large {chosen}", "serve": f"up --large {chosen}"}
    for use, command in uses.items():
        out.print(Text(f"{use} it: afterimage {command}{where}"))


@app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="A name that `models add` gave.")], data_dir: DataDir = None
) -> None:
    """Forget a name that `models add` gave. The checkpoint stays where it is: no file of it is deleted.

    Says how much of the disk deleting it would free, and where it lies. Models that ship or are known stay.

    [bold]Example[/bold]

      afterimage models remove my-finetune
    """
    settings = settings_from(data_dir=data_dir)
    known = added.added(settings.data_dir)
    if name in bundled_cards() and name not in known:
        raise ModelError(f"name: {name!r} ships with Afterimage and stays; `models add` gave none of that name")
    path = added.remove(settings.data_dir, name)
    out, folder = wide(), Path(path) if Path(path).is_dir() else hub.cached(path) if is_hub_id(path) else None
    others = sorted(other for other, its in known.items() if its == path and other != name)
    out.print(Text(f"{name} is free; it was {path}" + (f", which is also {', '.join(others)}" if others else "")))
    if folder is not None:
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        out.print(Text(f"nothing was deleted: {folder} has {memory.said(size)}, which deleting it would free"))


def models_table(settings: Settings, width: int = WIDE) -> Table:
    """One row a model, with its whole name."""
    return fitted(LISTED, _rows(settings), width)


def _rows(settings: Settings) -> list[list[str | Text]]:
    bundled = [_row("bundled", card) for card in bundled_cards(BUNDLED).values()]
    mine = [_added_row(settings, name, path) for name, path in added.added(settings.data_dir).items()]
    return [*bundled, *mine, *(_row(hub_id, card) for hub_id, card in KNOWN.items())]


def _row(where: str, card: ModelCard) -> list[str | Text]:
    folder = _here(card)
    here = "no" if folder is None else "not whole" if checkpoint.faults(folder) else "yes"
    return _whole([card.name, Text(where), here, *_figures(_counted(card, folder))])


def _whole(row: list[str | Text]) -> list[str | Text]:
    return row + [""] * (len(LISTED) - len(row))


def _added_row(settings: Settings, name: str, path: str) -> list[str | Text]:
    """A name whose folder went, or whose checkpoint is no model's, is shown and hides none of the others."""
    try:
        return _row(path, find_card(name, data_dir=settings.data_dir))
    except ModelError:
        return _whole([name, Text(path), "no", f"cannot be served: `models check {name}` says why"])


def _counted(card: ModelCard, folder: Path | None) -> ModelCard:
    """With the parameters that the weights on this disk have; the card's own where a file of them is broken."""
    return memory.counted(card, folder) if folder and not checkpoint.faults(folder) else card


def _figures(card: ModelCard) -> list[str]:
    if not card.family:
        return ["not known before it is fetched"]
    need = memory.estimate(card, rows=4)
    figures = [card.family, str(card.default_size), latent_shape(card), str(card.default_steps)]
    figures += [f"{card.default_guidance:g}", card.dtype]
    return [*figures, memory.said(need.weights), memory.said(need.total if card.row_values else 0)]


def _here(card: ModelCard) -> Path | None:
    """Where its files are on this disk, whole or not."""
    if card.is_noop:
        raise ModelError(f"model {card.name!r}: path: {card.path!r} only waits; there is nothing to check")
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
    size = memory.smallest(card)
    engine.submit(Task("check", card.name, "a red fox in the snow", size, 2, card.default_guidance, seed=7))
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Left):
                raise event.error
            if isinstance(event, Finished):
                took = f"two steps in {event.denoise_s:.2f} s, decoded in {event.decode_s:.2f} s"
                out.print(Text(f"drew {size} on {family.device}: loaded in {loaded_s:.1f} s, {took}"))
