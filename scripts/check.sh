#!/usr/bin/env bash
# Run every automatic check of the repository.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
ruff format --check .
ruff check .
mypy services shared load bench scripts tests
lint-imports
(cd protos && buf lint)
PYTHON=python ./scripts/protos.sh --check
