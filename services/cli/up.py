"""`afterimage up`: everything in one process, until it is told to stop."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.display.words import wide
from services.cli.embedded import all_services, announced, settings_from
from shared.models.card_lookup import served_cards
from shared.runtime import telemetry

if TYPE_CHECKING:
    from shared.service import Running

Optional = typer.Option


def up(
    listen: Annotated[str | None, Optional(help="Public gRPC address, host:port.")] = None,
    data_dir: Annotated[Path | None, Optional(help="Catalog, pictures and cached latents live here.")] = None,
    large: Annotated[
        str | None,
        Optional(help="The model that draws: a name of `afterimage models list`, a diffusers folder, or a hub id."),
    ] = None,
    small: Annotated[
        str | None,
        Optional(
            help="Models that refine image hits, best first, with commas between them: bundled:small, or hub ids."
        ),
    ] = None,
    workers: Annotated[int | None, Optional(help="Workers in this process, each with a model at a time.")] = None,
    monitor_mode: Annotated[
        str | None,
        Optional(help="throughput (hits to small models) or quality (as many large models as the demand allows)."),
    ] = None,
    encoder: Annotated[str | None, Optional(help="CLIP encoder: a bundled name, a folder, or a hub id.")] = None,
    device: Annotated[str | None, Optional(help="auto, cpu, cuda, cuda:1 …")] = None,
    dtype: Annotated[
        str | None, Optional(help="auto (the model's card; on a CPU float32), float32, bfloat16, float16.")
    ] = None,
    offload: Annotated[
        str | None, Optional(help="none; model: its parts take turns on the device; sequential: layer by layer.")
    ] = None,
    torch_threads: Annotated[
        int | None, Optional(help="Threads of the denoiser; 0: the fastest, measured as it draws.")
    ] = None,
    max_rows: Annotated[int | None, Optional(help="Requests that share one denoising step.")] = None,
    max_queued: Annotated[int | None, Optional(help="Jobs that may wait before new ones are refused.")] = None,
    cache_max_bytes: Annotated[int | None, Optional(help="Byte budget of the cached latents.")] = None,
    image_tier: Annotated[
        str | None,
        Optional(help="Whose pictures any model may start from: all, large (those that the large model drew) or off."),
    ] = None,
    eviction_policy: Annotated[
        str | None,
        Optional(
            help="afterimage (learns what states save), lcbfu (NIRVANA §5.4), lru, lfu, fifo or lrbu (FlexCache)."
        ),
    ] = None,
    k_table_alpha: Annotated[float | None, Optional(help="Quality a hit must keep: picks the K table.")] = None,
    predictor: Annotated[str | None, Optional(help="sketch, svm (NIRVANA §5.2) or always.")] = None,
    metrics_listen: Annotated[str | None, Optional(help="host:port of /metrics; '' switches it off.")] = None,
    log_level: Annotated[str | None, Optional(help="debug, info, warning or error.")] = None,
) -> None:
    """Start Afterimage: every service in one process, gRPC with health and reflection.

    SIGTERM (or Ctrl-C) drains: work is finished or handed back, and the next start goes on where this one stopped.

    [bold]Examples[/bold]

      afterimage up

      afterimage up --listen 0.0.0.0:50051 --data-dir /var/lib/afterimage --max-rows 16

      afterimage up --small bundled:small --workers 2 --torch-threads 1

      afterimage up --large stable-diffusion-v1-5/stable-diffusion-v1-5 --encoder openai/clip-vit-large-patch14
    """
    settings = settings_from(**locals())
    from shared.models.devices import placed
    from shared.runtime.loop import run
    from shared.service.process import check_free, serve

    telemetry.configure_logging(settings.log_level)
    names = ", ".join(served_cards(settings))  # a wrong name is said before anything is started
    check_free(settings)  # before torch is imported
    with contextlib.ExitStack() as stack:
        out = wide()
        out.print("[dim]starting …[/dim]")

        def ready(process: Running) -> None:
            stack.enter_context(announced(process, settings))
            out.print(f"[bold]Afterimage[/bold] listens on [bold]{process.address}[/bold] (gRPC)")
            metrics = f"http://{settings.metrics_listen}/metrics" if settings.metrics_listen else "off"
            out.print(f"metrics {metrics} · data {settings.data_dir.absolute()} · model {names}")
            out.print("Draw: afterimage generate 'a red fox in the snow'    Stop: Ctrl-C", highlight=False)

        run(serve(all_services(settings.workers), placed(settings), on_ready=ready))
