#!/usr/bin/env bash
# Certificates by which Afterimage's services know each other: compose/mesh_certificates.sh FOLDER [DAYS]
# Makes FOLDER/NAME with tls.crt, tls.key and ca.crt for each service and for commands, and FOLDER/ca.key, which no
# service needs. Needs openssl. Run again, it renews them under the same authority; running services use the new files.
set -euo pipefail
umask 077
mkdir -p "${1:?name a FOLDER}"
cd "$1"
days="${2:-90}"
made="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"

quietly() {  # openssl reports its progress as errors
  said=$("$@" 2>&1) || { echo "$said" >&2; exit 1; }
}

if [ ! -f ca.key ]; then
  quietly openssl req -x509 $made -days 3650 -subj /CN=afterimage-mesh -keyout ca.key -out ca.crt
fi
for name in operator gateway embedder text-extractor match-predictor retriever cache-maintainer segmenter global-monitor gpu-worker; do
  mkdir -p "$name"
  printf 'subjectAltName=DNS:%s\nextendedKeyUsage=clientAuth,serverAuth\n' "$name" >new.cnf
  quietly openssl req $made -subj "/CN=$name" -keyout "$name/new.key" -out new.csr
  quietly openssl x509 -req -in new.csr -CA ca.crt -CAkey ca.key -days "$days" -out "$name/new.crt" -extfile new.cnf
  cp ca.crt "$name/new.ca"
  [ "$(id -u)" != 0 ] || chown --reference="$name" "$name"/new.*  # the service's own user reads the renewed files, too
  mv "$name/new.key" "$name/tls.key"
  mv "$name/new.crt" "$name/tls.crt"
  mv "$name/new.ca" "$name/ca.crt"
done
rm new.csr new.cnf
