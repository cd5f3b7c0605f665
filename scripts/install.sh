#!/usr/bin/env bash
# Make .venv from the lock: scripts/install.sh run|dev   (Debian/Ubuntu need: apt-get install python3 python3-venv)
# AFTERIMAGE_TORCH=cpu (default) installs torch's CPU build; cuda, cu128, rocm… or auto install the named build.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1:-run}
backend=${AFTERIMAGE_TORCH:-cpu}
python=${PYTHON:-python3}
stamp=".venv/.installed-$extras-$backend-$(cat pyproject.toml constraints.txt scripts/install.sh | sha256sum | cut -c1-16)"
[ -e "$stamp" ] && exit 0

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Afterimage needs Python 3.11 or newer ($("$python" --version) is $python; set PYTHON=...)" >&2; exit 1; }
if [ ! -x .venv/bin/python ]; then
  echo "Creating .venv with $("$python" --version) ..."
  "$python" -m venv .venv || { rm -rf .venv; echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
fi
pip=".venv/bin/python -m pip --disable-pip-version-check"
[ -x .venv/bin/uv ] || { echo "Installing uv ..."; $pip install --quiet "uv==0.13.8"; }

torch=$(grep '^torch==' constraints.txt)
have=".venv/.torch-$backend-${torch#torch==}"
if [ ! -e "$have" ]; then
  echo "Installing $torch ($backend build) ..."
  # Prefer a wheel on disk that pip's configuration names; otherwise install the build that $backend names.
  { [ "$backend" = cpu ] && $pip install --quiet --no-index --no-deps "$torch" 2>/dev/null; } ||
    .venv/bin/uv pip install --python .venv/bin/python --reinstall-package torch --torch-backend "${backend/#cuda/auto}" "$torch" || {
      echo "torch's $backend build could not be fetched. Set AFTERIMAGE_TORCH to another build, or PIP_FIND_LINKS to the folder of a wheel on disk" >&2; exit 1; }
  rm -f .venv/.torch-*
  touch "$have"
fi
echo "Installing Afterimage and its dependencies ..."
what=".[serve,fast]"; [ "$extras" = run ] || what=".[$extras,serve,fast,load,cluster]"
.venv/bin/uv pip install --python .venv/bin/python --constraint constraints.txt --editable "$what"
rm -f .venv/.installed-"$extras"-*
touch "$stamp"
