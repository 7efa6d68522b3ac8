#!/usr/bin/env bash
# Runs every test. `--compile` only builds the test binaries, so that a cold
# build's minutes are printed apart from the suite's.
set -euo pipefail
cd "$(dirname "$0")/.."

# Packages that embed the Temporal server are tested without the race detector:
# it would double a build of minutes and watch somebody else's code.
embed='^berth/(internal/temporaldev|cmd/berth-dev|e2e)(/|$)'
# The chaos suite comes last and alone: it fills the machine by itself.
chaos=berth/e2e/chaos
all=$(go list ./...)
race=$(grep -vE "$embed" <<<"$all")
plain=$(grep -E "$embed" <<<"$all" | grep -vx "$chaos" || true)
begun=$SECONDS

if [[ "${1:-}" == --compile ]]; then
  echo "== building the programs and test binaries"
  go build ./...
  go vet -tags failpoints ./internal/failpoint ./cmd/berthd ./cmd/berth-agent
  go build -tags failpoints -o "$(mktemp -d)" ./cmd/berthd ./cmd/berth-agent # for the cache: tests build them again
  go vet ./...
  # shellcheck disable=SC2086
  go test -race -run '^$' $race >/dev/null
  # shellcheck disable=SC2086
  go test -run '^$' $plain "$chaos" >/dev/null
  echo "== built in $((SECONDS - begun)) s"
  exit 0
fi

failed=0
echo "== tests, race detector on"
# shellcheck disable=SC2086
go test -race -count=1 -timeout 14m $race || failed=1
if [[ -n "$plain" ]]; then
  echo "== tests of what embeds the Temporal server"
  # shellcheck disable=SC2086
  go test -count=1 -timeout 14m $plain || failed=1
fi
echo "== chaos: the fixed cells; make chaos has more"
chaos_begun=$SECONDS
go test -count=1 -v -timeout 14m "$chaos" -args -seed 1 || failed=1
echo "== chaos took $((SECONDS - chaos_begun)) s"
echo "== tests took $((SECONDS - begun)) s"
if ((failed)); then
  echo "== FAILED"
  exit 1
fi
echo "== all passed"
