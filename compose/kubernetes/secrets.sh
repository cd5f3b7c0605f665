#!/usr/bin/env bash
# Print the secrets of a deployment: compose/kubernetes/secrets.sh | kubectl apply -n afterimage -f -
# Your four servers: export AFTERIMAGE_CATALOG_URL, AFTERIMAGE_BUS_URL, AFTERIMAGE_BLOBS_URL and AFTERIMAGE_INDEX_URL first. Without
# any of them: random passwords, for the servers of in-cluster. Run it once, since a server keeps the password of its first start.
set -euo pipefail
password() { od -An -N"${1:-16}" -tx1 /dev/urandom | tr -d ' \n'; }
names=(AFTERIMAGE_CATALOG_URL AFTERIMAGE_BUS_URL AFTERIMAGE_BLOBS_URL AFTERIMAGE_INDEX_URL)
given=0
for name in "${names[@]}"; do [ -z "${!name:-}" ] || given=$((given + 1)); done
if [ "$given" != 0 ] && [ "$given" != 4 ]; then
  echo "set all of ${names[*]}, or none" >&2
  exit 64
fi
secret() { printf -- '---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n  labels: { app.kubernetes.io/part-of: afterimage }\nstringData:\n' "$1"; }
entry() { printf '  %s: "%s"\n' "$1" "$2"; }
if [ "$given" = 0 ]; then
  postgres=$(password) rabbitmq=$(password) minio=$(password) weaviate=$(password)
  AFTERIMAGE_CATALOG_URL=postgresql+asyncpg://afterimage:$postgres@postgres:5432/afterimage
  AFTERIMAGE_BUS_URL=amqp://afterimage:$rabbitmq@rabbitmq:5672/
  AFTERIMAGE_BLOBS_URL=minio://afterimage:$minio@minio:9000/afterimage
  AFTERIMAGE_INDEX_URL="weaviate://:$weaviate@weaviate:8080?grpc_port=50051"
  secret afterimage-passwords
  for name in postgres rabbitmq minio weaviate; do entry "$name" "${!name}"; done
fi
secret afterimage-servers
for name in "${names[@]}"; do entry "$name" "${!name}"; done
secret afterimage-gateway
entry url-secret "$(password 32)"
