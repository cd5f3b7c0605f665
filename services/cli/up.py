"""`afterimage up`: run every service in one process until a signal stops it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from services.cli.display.help import setting
from services.cli.display.words import wide
from services.cli.embedded import all_services, announced, settings_from
from shared.models.card_lookup import served_cards
from shared.runtime import telemetry

if TYPE_CHECKING:
    from shared.service import Running


def up(
    listen: Annotated[str | None, setting("listen")] = None,
    data_dir: Annotated[Path | None, setting("data_dir")] = None,
    large: Annotated[str | None, setting("large")] = None,
    small: Annotated[str | None, setting("small")] = None,
    video: Annotated[str | None, setting("video")] = None,
    workers: Annotated[int | None, setting("workers")] = None,
    monitor_mode: Annotated[str | None, setting("monitor_mode")] = None,
    encoder: Annotated[str | None, setting("encoder")] = None,
    segmenter: Annotated[str | None, setting("segmenter")] = None,
    device: Annotated[str | None, setting("device")] = None,
    dtype: Annotated[str | None, setting("dtype")] = None,
    sampler: Annotated[str | None, setting("sampler")] = None,
    offload: Annotated[str | None, setting("offload")] = None,
    torch_threads: Annotated[int | None, setting("torch_threads")] = None,
    max_rows: Annotated[int | None, setting("max_rows")] = None,
    max_queued: Annotated[int | None, setting("max_queued")] = None,
    cache_max_bytes: Annotated[int | None, setting("cache_max_bytes")] = None,
    image_tier: Annotated[str | None, setting("image_tier")] = None,
    eviction_policy: Annotated[str | None, setting("eviction_policy")] = None,
    k_table_alpha: Annotated[float | None, setting("k_table_alpha")] = None,
    predictor: Annotated[str | None, setting("predictor")] = None,
    http_listen: Annotated[str | None, setting("http_listen")] = None,
    metrics_listen: Annotated[str | None, setting("metrics_listen")] = None,
    log_level: Annotated[str | None, setting("log_level")] = None,
) -> None:
    """Start Afterimage: every service in one process, with gRPC health and reflection.

    SIGTERM or Ctrl-C drains the process: running jobs finish or return to their queue, and the next start continues
    with them.

    Each setting has a variable AFTERIMAGE_<NAME>, also those without an option here, such as AFTERIMAGE_EXTRACTOR and
    AFTERIMAGE_STATE_CODEC: docs/reference/settings.md has them all.

    [bold]Examples[/bold]

      afterimage up

      afterimage up --listen 127.0.0.1:50060 --data-dir /var/lib/afterimage --max-rows 16

      afterimage up --small bundled:small --workers 2 --torch-threads 1

      afterimage up --large stable-diffusion-v1-5/stable-diffusion-v1-5 --encoder openai/clip-vit-large-patch14
    """
    settings = settings_from(**locals())
    from shared.models.devices import placed
    from shared.runtime.loop import run
    from shared.service.door import keys_needed
    from shared.service.process import check_free, serve

    telemetry.configure_logging(settings.log_level)
    names = ", ".join(served_cards(settings))  # a wrong name fails before anything is started
    check_free(settings)  # before torch is imported
    with contextlib.ExitStack() as stack:
        out = wide()
        out.print(f"[dim]loading {names}, which takes half a minute or more …[/dim]", highlight=False)

        def ready(process: Running) -> None:
            stack.enter_context(announced(process, settings))
            out.print(f"[bold]Afterimage[/bold] listens on [bold]{process.address}[/bold] (gRPC)")
            out.print(f"HTTP [bold]{process.http_address or 'off'}[/bold] (OpenAI's images API)")
            metrics = f"http://{settings.metrics_listen}/metrics" if settings.metrics_listen else "off"
            out.print(f"metrics {metrics} · data {settings.data_dir.absolute()} · model {names}")
            if keys_needed(settings, settings.listen):
                first = settings.data_dir.absolute() / "bootstrap-key"
                where = f"the first one is in {first}" if first.exists() else "`afterimage keys create` makes one"
                out.print(f"Callers need a key: AFTERIMAGE_API_KEY; {where}", highlight=False)
            out.print("Generate: afterimage generate 'a red fox in the snow'    Stop: Ctrl-C", highlight=False)

        run(serve(all_services(settings.workers), placed(settings), on_ready=ready))
