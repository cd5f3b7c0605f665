from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from services.replay.traces.trace import DEFAULT_SIZE, poisson, read_trace
from shared.domain.errors import ConfigurationError
from shared.domain.types import Size

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


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_steps_are_read_where_they_are_asked_for(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind, [{**row, "steps": 10 * at} for at, row in enumerate(ROWS, 2)])
    trace = read_trace(path, most_steps=40)
    assert trace.steps is not None
    assert trace.steps.tolist() == trace.asked(50).tolist() == [30, 20, 40]
    assert trace[1:].asked(50).tolist() == [20, 40]
    assert read_trace(path).steps is None
    assert read_trace(path).asked(50).tolist() == [50, 50, 50]
    with pytest.raises(ConfigurationError, match=r"field 'steps': must be a whole number of steps from 1 to 39 .*40"):
        read_trace(path, most_steps=39)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompt,user\na,b\n", "needs a column 'steps'; it has prompt, user"),
        ("prompt,user,steps\na,b,50\na,b,\n", "line 3, field 'steps': must be a whole .* from 1 to 1,000 .*no value"),
        ("prompt,user,steps\na,b,0\n", "line 2, field 'steps': must be a whole number of steps .*'0'"),
        ("prompt,user,steps\na,b,12.5\n", "line 2, field 'steps': .*12.5"),
        ("prompt,user,steps\na,b,many\n", "line 2, field 'steps': .*many"),
        ("prompt,user,steps\na,b,nan\n", "line 2, field 'steps': .*nan"),
        ("prompt,user,steps\na,b,1001\n", "line 2, field 'steps': .*1001"),
    ],
)
def test_steps_that_the_gateway_would_refuse_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    assert read_trace(tmp_path / "trace.csv").steps is None
    with pytest.raises(ConfigurationError, match=said):
        read_trace(tmp_path / "trace.csv", most_steps=1000)


def test_a_parquet_with_one_side_only_is_refused(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "height"} for row in ROWS]
    with pytest.raises(ConfigurationError, match=r"row 1, field 'height': [^\n]* together with 'width'"):
        read_trace(written(tmp_path, "parquet", rows))


def test_without_arrivals_the_order_is_timestamp_channel_and_number(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": prompt, "user": 1, "timestamp": f"2022-08-11T00:00:0{second}", "channel": channel, "seq": seq}
        for prompt, second, channel, seq in [("d", 2, 0, 0), ("b", 0, 1, 7), ("a", 0, 0, 9), ("c", 0, 1, 8)]
    ]
    trace = read_trace(written(tmp_path, "jsonl", rows))
    assert trace.prompts == ("a", "b", "c", "d")
    assert trace.arrival_s.tolist() == [0, 0, 0, 2]
    assert trace.sizes == (DEFAULT_SIZE,) * 4


@pytest.mark.parametrize(("kind", "text"), [("csv", "prompt,user\na,b\ncaf\xe9,b\n"), ("jsonl", '{}\n{}\n{"\xe9": 1}')])
def test_what_is_not_utf_8_is_said_with_its_line(tmp_path: Path, kind: str, text: str) -> None:
    (tmp_path / f"trace.{kind}").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"line 3: must be UTF-8 \(byte 0xe9"):
        read_trace(tmp_path / f"trace.{kind}")


def test_a_byte_order_mark_and_a_blank_last_line_are_fine(tmp_path: Path) -> None:
    table, lines = tmp_path / "trace.csv", tmp_path / "trace.jsonl"
    table.write_bytes(b"\xef\xbb\xbfprompt,user\r\na,b\r\n")
    lines.write_text('{"prompt": "a", "user": "b"}\n\n')
    assert [read_trace(path).prompts for path in (table, lines)] == [("a",), ("a",)]


def test_a_number_as_timestamp_is_seconds(tmp_path: Path) -> None:
    said: list[dict[str, object]] = [{"prompt": "a", "user": 1, "timestamp": 1660176000 + second} for second in (60, 0)]
    same: list[dict[str, object]] = [
        {"prompt": "a", "user": 1, "timestamp": f"2022-08-11T00:0{minute}:00Z"} for minute in (1, 0)
    ]
    for kind, rows in (("jsonl", said), ("csv", said), ("parquet", said), ("jsonl", same)):
        assert read_trace(written(tmp_path, kind, rows)).arrival_s.tolist() == [0, 60]


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
        ("trace.csv", "prompt,user\n", "at least one request"),
        ("trace.csv", "", "needs a column 'prompt'"),
        ("trace.jsonl", '{"prompt": "a", "user": 1}\n[["prompt", "a"], ["user", 1]]\n', "line 2: not a JSON object"),
        ("trace.jsonl", '{"prompt": "a", "user": [1]}\n', "line 1, field 'user': must be a name"),
        ("trace.jsonl", '{"prompt": "a", "user": null}\n', "line 1, field 'user': .*no value"),
        ("trace.csv", "prompt,user\na,b\na,\n", "line 3, field 'user': must be a name"),
        ("trace.jsonl", '{"prompt": null, "user": 1}\n', "line 1, field 'prompt': .*no value"),
        ("trace.jsonl", '{"prompt": "a", "user": 1}\n\n{"user": 1}\n', "line 3, field 'prompt'"),
        ("trace.jsonl", '{"prompt": 5, "user": 1}\n', "field 'prompt': must be text"),
        ("trace.csv", "prompt,user\n ,b\n", "line 2, field 'prompt'"),
        ("trace.csv", "prompt,user\na,b,c\n", "line 2: [^\n]* fields"),
        ("trace.csv", "prompt,user,timestamp\na,b,yesterday\n", "line 2, field 'timestamp': must be a date and time"),
        (
            "trace.jsonl",
            '{"prompt": "a", "user": 1, "timestamp": 1660176000}\n{"prompt": "a", "user": 1, "timestamp": null}\n',
            "line 2, field 'timestamp': .*no value",
        ),
        ("trace.jsonl", '{"prompt": "a", "user": 1, "timestamp": 1660176000000}\n', "seconds since 1970"),
        (
            "trace.jsonl",
            '{"prompt": "a", "user": 1}\n{"prompt": "a", "user": 1, "arrival_s": 3}\n',
            "line 1, field 'arrival_s': must be a number of seconds .*no value",
        ),
        (
            "trace.csv",
            "prompt,user,width,height\na,b,0,64\n",
            "line 2, field 'width': must be a whole number of pixels",
        ),
        (
            "trace.csv",
            "prompt,user,width,height\na,b,64,-8\n",
            "line 2, field 'height': must be a whole number of pixels",
        ),
        (
            "trace.csv",
            "prompt,user,width,height\na,b,64.5,64\n",
            "line 2, field 'width': must be a whole number .*64.5",
        ),
        ("trace.csv", "prompt,user,width,height\na,b,64,1e300\n", "line 2, field 'height': .* from 1 to 65,536"),
        (
            "trace.csv",
            "prompt,user,width\na,b,64\n",
            "line 2, field 'height': [^\\n]* together with 'width'",
        ),
        ("trace.csv", "prompt,user,height\na,b,64\n", "line 2, field 'width': [^\\n]* together with 'height'"),
        (
            "trace.jsonl",
            '{"prompt": "a", "user": 1, "width": 64, "height": 64}\n{"prompt": "a", "user": 1, "width": 64}\n',
            "line 2, field 'height': [^\\n]* together with 'width'.*no value",
        ),
        (
            "trace.jsonl",
            '{"prompt": "a", "user": 1, "width": 64, "height": 64}\n{"prompt": "a", "user": 1}\n',
            "line 2, field 'width': must be a whole number of pixels .*no value",
        ),
        ("trace.csv", "prompt,user,arrival_s\na,b,soon\n", "line 2, field 'arrival_s'"),
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


def test_frames_make_a_trace_of_clips_and_are_the_same_in_all_rows(tmp_path: Path) -> None:
    rows = [{**row, "frames": 16} for row in ROWS]
    trace = read_trace(written(tmp_path, "jsonl", rows))
    assert (trace.frames, trace[1:].frames) == (16, 16)
    rows[1]["frames"] = 8
    with pytest.raises(ConfigurationError, match="line 2, field 'frames': must be the same in all rows"):
        read_trace(written(tmp_path, "jsonl", rows))
    rows[0]["frames"] = 0
    with pytest.raises(ConfigurationError, match="line 1, field 'frames': must be a whole number"):
        read_trace(written(tmp_path, "jsonl", rows))
