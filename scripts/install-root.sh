#!/usr/bin/env bash
# Makes the root file system of a new host, out of Debian's packages, for the test of the
# installation page (e2e/install), and prints the path of its tarball. A second run finds it
# made. The packages that the page installs are part of it, so that the test needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=bookworm # the Debian that the page names
cache=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
key=$(sha256sum <scripts/install-root.sh | cut -c1-12)
out=$cache/install-$suite-$key.tar
mkdir -p "$cache"
exec 9>"$cache/.install-root.lock"
flock 9 # of two that want it, one makes it
if [[ ! -s "$out" ]]; then
  command -v mmdebstrap >/dev/null || { echo "install-root: mmdebstrap is missing: scripts/setup.sh demo" >&2; exit 1; }
  echo "install-root: building a $suite root with systemd, PostgreSQL and Docker (once; two minutes)" >&2
  mmdebstrap --quiet --format=tar --mode=root --variant=important \
    --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include=systemd,systemd-sysv,dbus,postgresql,docker.io,openssl,ca-certificates,iptables,nftables,iproute2,curl \
    --customize-hook='rm -rf "$1"/var/cache/apt/archives/*.deb' \
    "$suite" "$out.new" >&2
  mv "$out.new" "$out"
  echo "install-root: $(du -h "$out" | cut -f1)" >&2
fi
echo "$out"
