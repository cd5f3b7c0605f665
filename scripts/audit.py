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


def asked(packages: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the auditor's answer on each package; none where it gave no answer at all."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(packages) + "\n")
        file.flush()
        command = [str(ROOT / ".venv/bin/uv"), "tool", "run", "--quiet", AUDITOR, "--requirement", file.name]
        command += ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--timeout", "10", "--format", "json"]
        try:
            made = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            found: list[Mapping[str, Any]] = json.loads(made.stdout)["dependencies"]
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
            return []
    return found


def report(packages: int, answers: Sequence[Mapping[str, Any]]) -> tuple[list[str], bool]:
    """Return the lines to print, and whether a package has a known vulnerability."""
    checked = [one for one in answers if "vulns" in one]
    bad = [(one, vulnerability) for one in checked for vulnerability in one["vulns"]]
    lines = [
        f"{one['name']} {one['version']}: {vulnerability['id']}, mended in "
        f"{', '.join(vulnerability['fix_versions']) or 'no version yet'}"
        for one, vulnerability in bad
    ]
    known = f"{len({one['name'] for one, _ in bad})} with known vulnerabilities" if bad else "no known vulnerability"
    lines.append(f"audit: {len(checked)} of {packages} locked packages checked: {known}" if checked else
                 f"audit: not checked: the index answered for none of {packages} locked packages")  # fmt: skip
    return lines, bool(bad)


def main() -> int:
    packages = locked()
    lines, vulnerable = report(len(packages), asked(packages))
    print("\n".join(lines))
    return int(vulnerable)


if __name__ == "__main__":
    raise SystemExit(main())
