#!/usr/bin/env bash
# Shows that two builds of the last commit give the same files: clones it into two folders, builds a release in
# each with another umask, time zone and build cache, and compares the sums.
#
#     scripts/release-check.sh                          both architectures; cold builds take an hour on two cores
#     RELEASE_CACHE=shared scripts/release-check.sh     with the build cache of the user: minutes. Packages of
#                                                       other modules are then compiled once for both builds
#     RELEASE_ARCH=amd64 scripts/release-check.sh       one architecture
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
version=$(sed -n 's/^var Number = "\(.*\)"$/\1/p' internal/lib/buildinfo/buildinfo.go)
commit=$(git rev-parse HEAD)

# one FOLDER UMASK ZONE builds a release in a clone.
one() {
	git clone --quiet --no-hardlinks . "$1/berth"
	git -C "$1/berth" checkout --quiet --detach "$commit"
	(
		umask "$2"
		export TZ=$3 USER=builder-$2
		[[ ${RELEASE_CACHE:-} == shared ]] || export GOCACHE=$1/cache
		"$1/berth/scripts/release.sh" --rehearsal --out "$1/out" --arch "${RELEASE_ARCH:-amd64,arm64}" "$version"
	)
}
mkdir -p "$work/a" "$work/second folder/deeper"
one "$work/a" 022 UTC
one "$work/second folder/deeper" 077 Asia/Kathmandu
if ! diff "$work/a/out/SHA256SUMS" "$work/second folder/deeper/out/SHA256SUMS"; then
	echo "release-check: two builds of $commit differ" >&2
	exit 1
fi
echo "release-check: two builds of $commit are equal: $(wc -l <"$work/a/out/SHA256SUMS") files"
