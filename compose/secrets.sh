#!/usr/bin/env bash
# Write compose/.env (or the given file) from .env.example with new random passwords; keep an existing file.
set -euo pipefail
example=$(dirname "$0")/.env.example
file=${1:-$(dirname "$0")/.env}
umask 077
if [ -e "$file" ]; then
  [ ! -O "$file" ] || chmod 600 "$file"
  echo "$file exists and is kept" >&2
  exit 0
fi
while IFS= read -r line; do
  case $line in \#*) ;; *=) line=$line$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') ;; esac
  printf '%s\n' "$line"
done <"$example" >"$file"
echo "$file written; it holds passwords, keep it secret" >&2
