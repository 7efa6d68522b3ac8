#!/usr/bin/env bash
# Lists the modules that each program contains, with versions and hashes, in the format CycloneDX
# 1.6. The list comes from the build information in the program, so it names what was linked. The
# same program gives the same file:
#
#     scripts/sbom.sh                     builds the programs into bin/sbom/ and writes their lists there
#     scripts/sbom.sh FOLDER PROGRAM...   writes FOLDER/NAME.cdx.json for programs that exist
#
# BERTH_VERSION is the version of the programs; the default is the version of the source tree.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${BERTH_VERSION:-$(sed -n 's/^var Number = "\(.*\)"$/\1/p' internal/lib/buildinfo/buildinfo.go)}
[[ $version ]] || { echo "sbom: internal/lib/buildinfo/buildinfo.go has no version" >&2 && exit 1; }
folder=${1:-bin/sbom}
shift || true
if (($# == 0)); then
	# Without paths of this machine, so that two checkouts of a commit give the same programs.
	go build -trimpath -o "$folder/" ./cmd/...
	for main in cmd/*/; do set -- "$@" "$folder/$(basename "$main")"; done
fi
mkdir -p "$folder"
tool=$(scripts/tool.sh cyclonedx-gomod)
for program in "$@"; do
	out=$folder/$(basename "$program").cdx.json
	"$tool" bin -json -noserial -notimestamp -std -version "$version" -output "$out" "$program"
	echo "sbom: $out: $(grep -c '"bom-ref"' "$out") components"
done
