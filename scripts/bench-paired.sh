#!/usr/bin/env bash
# Compares the speed of this tree with an earlier commit in pairs of runs, and prints a 95 % interval for each
# quotient of after over before. Arguments after the commit go to the benchmark:
#
#     scripts/bench-paired.sh COMMIT
#     scripts/bench-paired.sh COMMIT -pairs 12 -parts jobs,latency,docker
#
# The test programs of both are compiled first. Each runs in the folder of its own sources.
set -euo pipefail
cd "$(dirname "$0")/.."

if (($# < 1)) || ! commit=$(git rev-parse --quiet --verify "$1^{commit}"); then
	echo "bench-paired: the first argument must be a commit of this repository, which a shallow clone may lack (git fetch --unshallow); got '${1:-}'" >&2
	exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source"
git archive "$commit" | tar --extract --directory "$work/source"
echo "bench-paired: compiling $(git log -1 --format='%h, %cs' "$commit")" >&2
(cd "$work/source" && go test -c -ldflags=-w -o e2e/bench/bench.test ./e2e/bench)
echo "bench-paired: compiling this tree" >&2
program=$PWD/e2e/bench/bench.test
trap 'rm -rf "$work" "$program"' EXIT
go test -c -ldflags=-w -o "$program" ./e2e/bench
(cd e2e/bench && ./bench.test -test.run '^$' -test.bench '^BenchmarkPaired$' -test.benchtime 1x -test.timeout 120m \
	-before "$work/source/e2e/bench/bench.test" -parts jobs "${@:2}")
