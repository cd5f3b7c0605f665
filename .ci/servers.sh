#!/usr/bin/env bash
# Gets the servers that the tests start as private instances: from Debian when they are missing, unpacked where we have them.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=()
command -v rabbitmq-server >/dev/null || [ -x /usr/sbin/rabbitmq-server ] || wanted+=(rabbitmq-server)
command -v initdb >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || wanted+=(postgresql)
command -v prometheus >/dev/null || wanted+=(prometheus)
command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || wanted+=(haproxy)
[ "$(id -u)" != 0 ] || command -v ip >/dev/null || wanted+=(iproute2) # for the tests that cut networks
if [ ${#wanted[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Missing: ${wanted[*]}. Install them, or run this as root on Debian." >&2
    exit 1
  fi
  echo "Installing ${wanted[*]} from Debian (their own services are not started) ..."
  policy=/usr/sbin/policy-rc.d # its 101 keeps dpkg from starting what it installs
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  apt-get -q update >/dev/null
  DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${wanted[@]}" >/dev/null
fi
if [ -x ../shared/bin/unpack ]; then
  echo "Unpacking MinIO and Weaviate from ../shared/bin; their tests are required."
  ../shared/bin/unpack "$PWD/out/servers" minio weaviate
else
  echo "No ../shared/bin here: tests that need MinIO or Weaviate skip unless they are on PATH."
fi
