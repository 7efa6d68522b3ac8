#!/usr/bin/env bash
# Makes the packages berth, berthd, berth-agent and berth-temporal for Debian (.deb) and RPM systems (.rpm) from built programs:
#
#     scripts/package.sh VERSION ARCH PROGRAMS NOTICE OUT
#
# ARCH is amd64 or arm64, PROGRAMS a folder with the programs, NOTICE the file of licences, and OUT the folder
# of the packages. deploy/packages has the contents. The same input gives the same files; their times are
# SOURCE_DATE_EPOCH, seconds since 1970 (default: the time of the commit).
set -euo pipefail
cd "$(dirname "$0")/.."
(($# == 5)) || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }

export VERSION=$1 ARCH=$2
programs=$3 notice=$4
mkdir -p "$5"
out=$(cd "$5" && pwd)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
nfpm=$(scripts/tool.sh nfpm)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

mkdir "$work/bin" "$work/systemd" "$work/doc"
cp "$programs"/{berthd,berth,berth-agent,berth-check,berth-cloud,berth-deadman,berth-temporal} "$work/bin/"
cp -r deploy/packages/. "$work/"
cp README.md "$work/doc/"
cp "$notice" "$work/doc/NOTICE"
cp LICENSE "$work/doc/copyright"
# Packages install programs in /usr/bin; /usr/local belongs to the administrator.
for unit in deploy/systemd/*; do
	sed 's|/usr/local/bin/|/usr/bin/|g' "$unit" >"$work/systemd/$(basename "$unit")"
done
find "$work" -exec touch --date="@$SOURCE_DATE_EPOCH" {} +
for name in berth berthd berth-agent berth-temporal; do
	for format in deb rpm; do
		(cd "$work" && "$nfpm" package --config "$name.yaml" --packager "$format" --target "$out/" >&2)
	done
done
