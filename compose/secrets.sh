#!/usr/bin/env bash
# Writes compose/.env (or the file it is given) from .env.example with new random passwords; leaves one alone that is there.
set -euo pipefail
example=$(dirname "$0")/.env.example
file=${1:-$(dirname "$0")/.env}
umask 077
if [ -e "$file" ]; then
  [ ! -O "$file" ] || chmod 600 "$file"
  echo "$file is there already: kept" >&2
  exit 0
fi
while IFS= read -r line; do
  case $line in \#*) ;; *=) line=$line$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') ;; esac
  printf '%s\n' "$line"
done <"$example" >"$file"
echo "$file written: keep it to yourself" >&2
