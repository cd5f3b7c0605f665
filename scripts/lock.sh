#!/usr/bin/env bash
# Write constraints.txt with the name, version and hashes of every package, without addresses. Run it after changing pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
# torch is pinned without hashes, because scripts/install.sh chooses its build (CPU, CUDA) for the machine. A GPU build
# installs its CUDA packages itself.
uv pip compile pyproject.toml --extra serve --extra cluster --extra fast --extra train --extra load --extra dev --universal --python-version 3.11 \
  --constraint <(echo "torch==2.13.0") \
  --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet \
  ${PREFER:+--constraint "$PREFER"} |
  awk '
    /^[a-zA-Z0-9]/ { skip = ($0 ~ /^(torch|triton|nvidia-|cuda-)/) }
    !skip { print }
    END { print "torch==2.13.0" }' > constraints.txt.new
mv constraints.txt.new constraints.txt
echo "constraints.txt: $(grep -c '^[a-z0-9]' constraints.txt) packages"
