#!/usr/bin/env bash
# Builds programs as a release has them:
#
#     scripts/programs.sh VERSION OS ARCH FOLDER NAME...
#
# OS is linux or darwin, ARCH is amd64 or arm64, FOLDER is the folder of the results, and each NAME a folder of
# cmd. Nothing of the caller's environment changes the result, except the build cache, which does not matter. A
# first build takes many minutes: a release shares no compiled package with the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
(($# >= 5)) || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }

version=$1 os=$2 arch=$3 folder=$4
shift 4
umask 022
export LC_ALL=C TZ=UTC GOFLAGS=-mod=readonly GOTOOLCHAIN=local GOAMD64=v1 GOARM64=v8.0 GOOS=$os GOARCH=$arch
export CGO_CFLAGS=-O2

# c_compiler prints the C compiler for the architecture.
c_compiler() {
	local cpu=x86_64
	[[ $arch == arm64 ]] && cpu=aarch64
	if command -v "$cpu-linux-gnu-gcc" >/dev/null; then
		echo "$cpu-linux-gnu-gcc"
	elif [[ $(uname -m) == "$cpu" ]]; then
		echo gcc
	else
		echo "programs: $cpu-linux-gnu-gcc is missing, the C compiler for berth-agent on $arch: scripts/setup.sh release" >&2
		exit 1
	fi
}

# Only the agent links C: the GPU library of NVIDIA is loaded at run time by C code. All others are static.
for name in "$@"; do
	cgo=0 cc=
	if [[ $name == berth-agent ]]; then
		cc=$(c_compiler)
		cgo=1
	fi
	echo "programs: building $name for $os/$arch" >&2
	CGO_ENABLED=$cgo CC=$cc go build -trimpath -buildvcs=true \
		-ldflags="-w -X berth/internal/lib/buildinfo.Number=$version" -o "$folder/$name" "./cmd/$name"
done
