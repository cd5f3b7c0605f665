from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from services.replay.trace import DEFAULT_SIZE, poisson, read_trace
from shared.errors import ConfigurationError
from shared.types import Size

ROWS = [
    {"prompt": "b", "user": "ben", "arrival_s": 5.0, "width": 64, "height": 96},
    {"prompt": "a", "user": "ana", "arrival_s": 2.0, "width": 64, "height": 64},
    {"prompt": "c", "user": "ana", "arrival_s": 9.0, "width": 64, "height": 64},
]


def written(folder: Path, kind: str, rows: list[dict[str, object]]) -> Path:
    import pandas

    path = folder / f"trace.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    else:
        pandas.DataFrame(rows).to_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_every_format_gives_the_same_trace_in_order_of_arrival(tmp_path: Path, kind: str) -> None:
    trace = read_trace(written(tmp_path, kind, list(ROWS)))
    assert trace.prompts == ("a", "b", "c")
    assert trace.users.tolist() == [0, 1, 0]
    assert trace.arrival_s.tolist() == [0, 3, 7]
    assert trace.sizes == (Size(64, 64), Size(64, 96), Size(64, 64))
    assert trace[1:].prompts == ("b", "c")


def test_without_arrivals_the_order_is_timestamp_channel_and_number(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": prompt, "user": 1, "timestamp": f"2022-08-11T00:00:0{second}", "channel": channel, "seq": seq}
        for prompt, second, channel, seq in [("d", 2, 0, 0), ("b", 0, 1, 7), ("a", 0, 0, 9), ("c", 0, 1, 8)]
    ]
    trace = read_trace(written(tmp_path, "jsonl", rows))
    assert trace.prompts == ("a", "b", "c", "d")
    assert trace.arrival_s.tolist() == [0, 0, 0, 2]
    assert trace.sizes == (DEFAULT_SIZE,) * 4


def test_poisson_arrivals_keep_the_order_and_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(row), "user": 0}) + "\n" for row in range(2000)))
    trace = poisson(read_trace(path), rate_per_s=4.0, seed=1)
    gaps = np.diff(trace.arrival_s)
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(0.25, rel=0.1)
    assert trace.mean_rate_per_s == pytest.approx(4, rel=0.1)
    assert trace.prompts[:3] == ("0", "1", "2")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("trace.jsonl", '{"prompt": "a"}\n', "needs a column 'user'"),
        ("trace.jsonl", "no json\n", "line 1: not a JSON object"),
        ("trace.csv", "prompt,user\n", "needs a column"),
        ("trace.csv", "prompt,user,arrival_s\na,b,soon\n", "column 'arrival_s'"),
        ("trace.txt", "", "must end in"),
        ("trace.parquet", "no parquet", "not a parquet file"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        read_trace(tmp_path / name)
    with pytest.raises(ConfigurationError, match="no such file"):
        read_trace(tmp_path / "elsewhere" / name)
