"""`make audit`: what is said of vulnerable, sound and unanswered packages, and which packages are asked about."""

from __future__ import annotations

from typing import Any

from scripts.audit import locked, report


def test_every_locked_package_is_asked_about() -> None:
    packages = locked()
    assert any(one.startswith("torch==") for one in packages)
    assert all("==" in one and "--hash" not in one for one in packages)


def test_a_known_vulnerability_is_named_and_fails() -> None:
    answers: list[dict[str, Any]] = [
        {"name": "one", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]},
        {"name": "two", "version": "2.0", "vulns": []},
    ]
    assert report(3, answers) == (
        ["one 1.0: PYSEC-1, fixed in 1.1", "audit: 2 of 3 locked packages checked: 1 with known vulnerabilities"],
        True,
    )


def test_no_answer_is_said() -> None:
    skipped = [{"name": "one", "skip_reason": "not found"}]
    assert report(3, skipped)[0] == ["audit: not checked: the index answered for none (3 locked packages)"]
    assert report(3, [], "no route")[0] == ["audit: not checked: no route (3 locked packages)"]
