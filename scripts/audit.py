"""Ask the package index for known vulnerabilities of the locked packages: `make audit`.

Packages without an answer are counted as not checked. A known vulnerability ends the command with 1.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
AUDITOR = "pip-audit@2.10.1"
LIMIT_S = 120


def locked() -> list[str]:
    """Return the lines `name==version` of constraints.txt, with their markers and without hashes."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line.rstrip(" \\") for line in lines if re.match(r"[a-z0-9]", line)]


def asked(packages: Sequence[str]) -> tuple[list[Mapping[str, Any]], str]:
    """Return the auditor's answer on each package, or none and the last line of what it said instead."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(packages) + "\n")
        file.flush()
        command = [str(ROOT / ".venv/bin/uv"), "tool", "run", "--quiet", AUDITOR, "--requirement", file.name]
        command += ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--timeout", "10", "--format", "json"]
        try:
            made = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return [], f"no answer within {LIMIT_S} s"
    try:
        return json.loads(made.stdout)["dependencies"], ""
    except ValueError:
        return [], (made.stderr.strip().splitlines() or ["no answer"])[-1]


def report(packages: int, answers: Sequence[Mapping[str, Any]], why: str = "") -> tuple[list[str], bool]:
    """Return the lines to print, and whether a package has a known vulnerability. why: there are no answers."""
    checked = [one for one in answers if "vulns" in one]
    bad = [(one, vulnerability) for one in checked for vulnerability in one["vulns"]]
    lines = [
        f"{one['name']} {one['version']}: {vulnerability['id']}, fixed in "
        f"{', '.join(vulnerability['fix_versions']) or 'no version yet'}"
        for one, vulnerability in bad
    ]
    known = f"{len({one['name'] for one, _ in bad})} with known vulnerabilities" if bad else "no known vulnerability"
    if checked:
        lines.append(f"audit: {len(checked)} of {packages} locked packages checked: {known}")
    else:
        lines.append(f"audit: not checked: {why or 'the index answered for none'} ({packages} locked packages)")
    return lines, bool(bad)


def main() -> int:
    packages = locked()
    lines, vulnerable = report(len(packages), *asked(packages))
    print("\n".join(lines))
    return int(vulnerable)


if __name__ == "__main__":
    raise SystemExit(main())
