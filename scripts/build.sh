#!/usr/bin/env bash
# Runs `go build -v` and prints every 15 seconds how many packages it has built,
# since a first build takes minutes. A build that finds nearly everything in the
# cache prints nothing. Arguments: a label, then those of go build, with -o DIR/
# and -race alone as flags, then the packages:
#
#     scripts/build.sh demo -o bin/ ./cmd/berth ./cmd/berth-dev
set -euo pipefail
# shellcheck source=scripts/build-env.sh
source "$(dirname "$0")/build-env.sh"
label=$1
shift
flags=() race=()
while [[ ${1:-} == -* ]]; do
  case $1 in
  -o) flags+=(-o "$2") && shift 2 ;;
  -race) race=(-race) && shift ;;
  *) echo "scripts/build.sh: unknown flag $1; allowed: -o DIR/, -race" >&2 && exit 2 ;;
  esac
done

total=$(go list "${race[@]}" -deps -f '{{if .Stale}}x{{end}}' "$@" | grep -c x || true)
((total < 30)) || echo "$label: building $total packages"

# With -v go prints the name of each package that it begins to compile. All other
# lines are messages, and go through.
show() {
  local built=0 at=$SECONDS line
  while IFS= read -r line; do
    case $line in
    "go: downloading "*) continue ;;
    *[!a-zA-Z0-9_./~-]*) echo "$line" >&2 && continue ;;
    esac
    built=$((built + 1))
    if ((total >= 30 && SECONDS - at >= 15)); then
      at=$SECONDS
      echo "$label: $built of $total packages"
    fi
  done
}
go build -v "${race[@]}" "${flags[@]}" "$@" 2>&1 | show
