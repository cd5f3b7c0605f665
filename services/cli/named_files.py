"""The files that --from and --continue name in place of a job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.client import AsyncClient
from shared.client.named_job import job_named_in, keeps_pixels, same_pixels
from shared.domain.errors import AfterimageError, InvalidRequestError


@dataclass(frozen=True)
class NamedFile:
    """A file or folder, and the job that its metadata names."""

    option: str
    path: Path
    job: str


def named_files(given: Mapping[str, str | None]) -> dict[str, NamedFile]:
    """Return the files by option. given: values by option; a job's id has no ending and is left out.

    Raises the errors of `job_named_in`.
    """
    paths = {option: Path(text) for option, text in given.items() if text}
    files = {option: path for option, path in paths.items() if path.suffix or path.exists()}
    return {option: NamedFile(option, path, job_named_in(path, option)) for option, path in files.items()}


@contextlib.contextmanager
def names_in_errors(files: Mapping[str, NamedFile]) -> Iterator[None]:
    """Add the file to an error about the job that it names."""
    try:
        yield
    except AfterimageError as error:
        for one in files.values():
            if one.job in str(error) and str(one.path) not in str(error):
                error.args = (f"{error} (the job that {one.path} names)",)
        raise


async def check_unchanged(files: Mapping[str, NamedFile], client: AsyncClient) -> None:
    """Raise InvalidRequestError if a PNG file holds other pixels than its job."""
    for one in files.values():
        if keeps_pixels(one.path) and not same_pixels(one.path, (await client.get_picture(one.job)).png):
            rule = f"must have unchanged pixels; to start from the job as it was generated: --{one.option} {one.job}"
            raise InvalidRequestError(one.option, rule, one.path)
