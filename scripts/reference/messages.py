"""The page of messages: kinds on the bus with senders and receivers, read from the sources, and the gRPC methods."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from scripts.reference.markdown import code, prose, table
from shared.bus.rabbitmq.queues import DEAD_LETTERS, FACTS, retry_queue
from shared.domain import messages
from shared.domain.messages import KINDS, GenerateImage, lane_of, refine_lane
from shared.domain.types import Modality

ROOT = Path(__file__).parents[2]
SENDING = {"dispatch": GenerateImage.__name__}
"""Functions of `shared` that send a message for their caller."""
INTRO = f"""\
# Messages

Bodies are JSON objects. Fields that a version does not know survive its rewriting of a message.
A command has one receiver. An event reaches every service that subscribes to its kind.

| | in one process (`inprocess:`) | on RabbitMQ |
|---|---|---|
| command | a lane in memory | the lane's durable quorum queue; the default exchange; the queue has the lane's name |
| event | every subscription in memory | the durable topic exchange `{FACTS}`; the routing key is the kind |
| subscription with a name | one receiver of each event | the durable queue `{FACTS}.NAME`, shared by replicas |
| subscription of one process | every event while the process runs | a queue that goes with its connection |
| task that waits to be tried again | a timer | `{retry_queue("LANE", 5.0).name}`, one queue per delay |
| dead letter | a list | `{DEAD_LETTERS.name}` |

Lanes: `{lane_of("MODEL")}` holds the jobs that only MODEL may run. `{refine_lane()}` holds image hits that several
models may run, `{refine_lane(Modality.VIDEO)}` the same for video.
"""


def page() -> str:
    """Return the page as Markdown."""
    senders, receivers = _traffic()
    nodes = {one.name: one for one in ast.parse(inspect.getsource(messages)).body if isinstance(one, ast.ClassDef)}
    parts = [INTRO]
    for name in sorted(KINDS, key=lambda name: name != GenerateImage.__name__):
        about = prose(ast.get_docstring(nodes[name]) or "")
        traffic = (
            f"Published by {_listed(senders[name]) or 'no service yet'}."
            f" Received by {_listed(receivers[name]) or 'no service yet'}."
        ).replace("Published", "Sent" if name == GenerateImage.__name__ else "Published")
        title = f"## {'Command' if name == GenerateImage.__name__ else 'Event'} `{name}`"
        fields = table(("field", "type", "default", "meaning"), _fields(nodes[name]))
        parts.append("\n\n".join(part for part in (title, about, traffic, fields) if part))
    methods = table(("method", "request", "answer", "meaning"), _methods())
    return "\n".join([*parts, f"## gRPC methods\n\nFields are in the `.proto` files of `protos/`.\n\n{methods}"])


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ...]]:
    """Yield name, type, default and docstring of each field."""
    for one, after in zip(node.body, [*node.body[1:], None], strict=True):
        match one:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=default):
                about = ast.literal_eval(after.value) if _is_text(after) else ""  # type: ignore[union-attr]
                yield code(name), code(ast.unparse(kind)), code(ast.unparse(default) if default else ""), prose(about)


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _traffic() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return two maps, kind of message → services: those that construct the kind, and those that subscribe to it or
    take it."""
    senders: dict[str, set[str]] = defaultdict(set)
    receivers: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "services").glob("*/**/*.py")):
        service, tree = path.relative_to(ROOT / "services").parts[0], ast.parse(path.read_text(encoding="utf-8"))
        imported = {name.asname or name.name: name.name for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)
                    and (one.module or "").startswith("shared.") for name in one.names}  # fmt: skip
        lists = {node.id: one.value for one in ast.walk(tree) if isinstance(one, ast.Assign | ast.AnnAssign)
                 for node in (one.targets if isinstance(one, ast.Assign) else [one.target])
                 if isinstance(node, ast.Name)}  # fmt: skip
        for call in (one for one in ast.walk(tree) if isinstance(one, ast.Call)):
            match call.func:
                case ast.Name(id=name) if name in imported and SENDING.get(name, name) in KINDS:
                    senders[SENDING.get(name, name)].add(code(service))
                case ast.Attribute(attr="subscribe"):
                    kinds = lists.get(call.args[0].id) if isinstance(call.args[0], ast.Name) else call.args[0]
                    one_of = any(keyword.arg == "queue" for keyword in call.keywords)
                    for name in (one.id for one in ast.walk(kinds or call) if isinstance(one, ast.Name)):
                        receivers[name].add(code(service) + (" (one replica)" if one_of else ""))
                case ast.Attribute(attr="receive") if service not in (
                    "cli",
                    "trainer",
                    "gateway",
                ):  # tensors, HTTP bodies
                    receivers[GenerateImage.__name__].add(f"{code(service)} (one worker)")
    return senders, receivers


def _listed(services: set[str]) -> str:
    return ", ".join(sorted(services))


def _methods() -> Iterator[tuple[str, ...]]:
    """Yield the methods of every .proto with the comments above them."""
    pattern = r"((?:  //.*\n)*)  rpc (\w+)\(((?:stream )?\w+)\) returns \((stream )?(\w+)\);"
    for path in sorted((ROOT / "protos").glob("*.proto")):
        source = path.read_text(encoding="utf-8")
        service = re.search(r"package ([\w.]+);", source), re.search(r"^service (\w+)", source, re.M)
        for comment, name, request, stream, answer in re.findall(pattern, source):
            planned = "" if (ROOT / "services" / path.stem).is_dir() else "Planned: no service answers yet."
            about = " ".join([*(line.strip(" /") for line in comment.splitlines()), planned]).strip()
            full = f"{service[0][1]}.{service[1][1]}/{name}" if service[0] and service[1] else name
            yield code(full), code(request), code(f"{stream}{answer}"), prose(about)
