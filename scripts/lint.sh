#!/usr/bin/env bash
# The linters that need nothing but the tree: gofmt, staticcheck and revive. make test runs them
# before the tests, and make lint adds those that need the network or the history. A first run of
# staticcheck reads all dependencies (minutes); later runs read what has changed.
set -euo pipefail
cd "$(dirname "$0")/.."

begun=$SECONDS
unformatted=$(git ls-files -co --exclude-standard '*.go' | xargs -r ls -d 2>/dev/null | xargs -r gofmt -l)
if [[ $unformatted ]]; then
	echo "lint: not gofmt-ed:" $unformatted
	exit 1
fi
staticcheck=$(scripts/tool.sh staticcheck)
revive=$(scripts/tool.sh revive)
"$staticcheck" ./...
"$revive" -config scripts/revive.toml -set_exit_status ./...
echo "== linted in $((SECONDS - begun)) s"
