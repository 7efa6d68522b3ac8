#!/usr/bin/env bash
# Verifies the downloaded modules against go.sum, and prints the known vulnerabilities that Berth's
# programs reach, from a copy of the Go vulnerability database in the folder BERTH_VULNDB:
#
#     scripts/vuln.sh FOLDER              of the programs in a folder
#     scripts/vuln.sh                     of programs that it builds
#     scripts/vuln.sh --strict            a missing or old database is a failure, not a warning
#     scripts/vuln.sh --source            from source, with the calls that reach each one (minutes)
#
# A finding fails unless vuln-exceptions.yaml accepts it. The published database is at
# https://vuln.go.dev; a copy is that layout, or a flat folder of its entries (GO-*.json) with
# their modification times.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=(berthd berth-agent berth-deadman berth-check berth berth-cloud berth-temporal) # as they run on clusters; berth-dev and berth-sim do not
flags=() source= folder=
for arg in "$@"; do
	case $arg in
	--strict) flags+=(-strict) ;;
	--source) flags+=(-source) source=1 ;;
	-*) echo "usage: $0 [--strict] [--source] [FOLDER]" >&2 && exit 2 ;;
	*) folder=$arg ;;
	esac
done

go mod verify
targets=()
if [[ $source ]]; then
	targets=("${programs[@]/#/./cmd/}")
else
	if [[ ! $folder ]]; then
		folder=bin
		go build -o bin/ "${programs[@]/#/./cmd/}"
	fi
	targets=("${programs[@]/#/$folder/}")
fi
flags+=(-govulncheck "$(scripts/tool.sh govulncheck)" -db "${BERTH_VULNDB:-}")
go run ./e2e/supply "${flags[@]}" "${targets[@]}"
