#!/usr/bin/env bash
# Print the secrets of a deployment: compose/kubernetes/secrets.sh [FOLDER] | kubectl apply -n afterimage -f -
# FOLDER, which `afterimage credentials` wrote: each service's own users of your four servers; repeat it after --rotate.
# Without FOLDER, run it once, since a server keeps the password of its first start:
# - export AFTERIMAGE_CATALOG_URL, AFTERIMAGE_BUS_URL, AFTERIMAGE_BLOBS_URL and AFTERIMAGE_INDEX_URL: all services use these;
# - without any of them: random passwords, for the servers of in-cluster.
set -euo pipefail
names=(AFTERIMAGE_CATALOG_URL AFTERIMAGE_BUS_URL AFTERIMAGE_BLOBS_URL AFTERIMAGE_INDEX_URL)
services=(gateway embedder text-extractor match-predictor retriever gpu-worker segmenter cache-maintainer global-monitor)
password() { od -An -N"${1:-16}" -tx1 /dev/urandom | tr -d ' \n'; }
secret() { printf -- '---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n  labels: { app.kubernetes.io/part-of: afterimage }\nstringData:\n' "$1"; }
entry() { printf '  %s: "%s"\n' "$1" "$2"; }
if [ $# -gt 0 ]; then
  for service in "${services[@]}"; do cat "$1/${service//-/_}.env" >/dev/null; done # all are there, or nothing is printed
  for service in "${services[@]}"; do
    secret "$service-servers"
    while read -r line || [ -n "$line" ]; do
      [[ $line != AFTERIMAGE_*=* ]] || entry "${line%%=*}" "${line#*=}"
    done <"$1/${service//-/_}.env"
  done
  exit
fi
given=0
for name in "${names[@]}"; do [ -z "${!name:-}" ] || given=$((given + 1)); done
if [ "$given" != 0 ] && [ "$given" != 4 ]; then
  echo "set all of ${names[*]}, or none" >&2
  exit 64
fi
if [ "$given" = 0 ]; then
  postgres=$(password) rabbitmq=$(password) minio=$(password) weaviate=$(password)
  AFTERIMAGE_CATALOG_URL=postgresql+asyncpg://afterimage:$postgres@postgres:5432/afterimage
  AFTERIMAGE_BUS_URL=amqp://afterimage:$rabbitmq@rabbitmq:5672/
  AFTERIMAGE_BLOBS_URL=minio://afterimage:$minio@minio:9000/afterimage
  AFTERIMAGE_INDEX_URL="weaviate://:$weaviate@weaviate:8080?grpc_port=50051"
  secret afterimage-passwords
  for name in postgres rabbitmq minio weaviate; do entry "$name" "${!name}"; done
fi
for service in "${services[@]}"; do
  secret "$service-servers"
  for name in "${names[@]}"; do entry "$name" "${!name}"; done
done
secret afterimage-gateway
entry url-secret "$(password 32)"
