"""One thread for torch in every test, and settings that touch nothing outside the test's own folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared.settings import Settings

torch.set_num_threads(1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Embedded mode in a folder of the test's own, on a free port, without a metrics page."""
    return Settings(data_dir=tmp_path / "data", listen="127.0.0.1:0", metrics_listen="")
