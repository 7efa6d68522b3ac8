#!/usr/bin/env bash
# usage: scripts/example-image.sh digits|gang|guide
# Makes the image of an example out of Debian's packages, where no image registry
# need answer, and prints the path of its root file system: a tarball for
# `docker import`. A second run finds it made.
set -euo pipefail
cd "$(dirname "$0")/.."

example=${1:-}
case $example in
  digits) library=python3-sklearn what="scikit-learn from Debian's packages (once; a minute or two)" ;;
  gang) library=python3-torch what="PyTorch from Debian's packages (once; some minutes)" ;;
  guide) library=libpython3-stdlib what="Python from Debian's packages (once; half a minute)" ;;
  *) echo "usage: scripts/example-image.sh digits|gang|guide" >&2; exit 2 ;;
esac

suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
cache=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
# The examples of the guide bring their code with each job.
code=()
[[ $example == guide ]] || code=("examples/$example/train.py")
key=$(cat scripts/example-image.sh "${code[@]}" | sha256sum | cut -c1-12)
out=$cache/$example-$suite-$key.tar

if [[ ! -s "$out" ]]; then
  command -v mmdebstrap >/dev/null || { echo "example-image: mmdebstrap is missing: apt-get install mmdebstrap" >&2; exit 1; }
  mkdir -p "$cache"
  echo "example-image: building a $suite image with $what" >&2
  begun=$SECONDS
  # Compilers, headers, documentation and tests are left out: they are three
  # quarters of it. Packages are unpacked, not configured, so what their scripts
  # would do for the linear algebra libraries is done here by ldconfig.
  exclude=()
  for path in /usr/share/{doc,man,locale,info}'/*' /usr/include'/*' /usr/lib/gcc'/*' /usr/lib/'*'/perl'/*' /usr/share/perl'/*' \
    '/usr/lib/*.a' '/usr/bin/*-linux-gnu-*' '/usr/lib/python3.*/config-*' '/usr/lib/python3/dist-packages/*/tests/*' \
    '/usr/lib/python3/dist-packages/pythran/*' '/usr/lib/*/gconv/*' '/usr/lib/*/lib?san.so*' '/usr/lib/*/libperl*'; do
    exclude+=(--dpkgopt="path-exclude=$path")
  done
  copy=()
  for file in "${code[@]}"; do copy+=(--extract-hook="copy-in $file /app"); done
  mmdebstrap --quiet --format=tar --mode=root --variant=extract "${exclude[@]}" \
    --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
    --include=base-files,base-passwd,libc-bin,dash,coreutils,python3-minimal,"$library" \
    --extract-hook='mkdir -p "$1/app" "$1/tmp" "$1/proc" "$1/sys" "$1/dev" && chmod 1777 "$1/tmp"' \
    "${copy[@]}" --extract-hook='ln -s python3 "$1/usr/bin/python"' \
    --extract-hook='for d in openblas-pthread blas lapack; do ls -d "$1"/usr/lib/*/$d 2>/dev/null | sed "s|^$1||"; done > "$1/etc/ld.so.conf.d/00-algebra.conf"; chroot "$1" /sbin/ldconfig' \
    --extract-hook='rm -rf "$1"/var/cache/* "$1"/var/lib/apt/lists/* "$1"/var/log/*' \
    "$suite" "$out.new" >&2
  mv "$out.new" "$out"
  echo "example-image: $(du -h "$out" | cut -f1), made in $((SECONDS - begun)) s" >&2
fi
echo "$out"
