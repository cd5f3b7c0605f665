#!/usr/bin/env bash
# Generate the Python code and type stubs beside every .proto file; --check fails if the committed code is stale.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$python" -m grpc_tools.protoc -I protos --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" protos/*.proto
# Generated modules import each other as top-level modules; change the imports to the package `protos`.
sed -i -E 's/^import ([a-z_]+_pb2) as/from protos import \1 as/' "$out"/*_pb2.py "$out"/*_pb2.pyi "$out"/*_pb2_grpc.py
if [ "${1:-}" = "--check" ]; then
  for file in "$out"/*; do
    cmp -s "$file" "protos/$(basename "$file")" || { echo "protos/$(basename "$file") is stale: run 'make protos'"; exit 1; }
  done
  echo "generated code is fresh"
else
  cp "$out"/* protos/
fi
