#!/usr/bin/env bash
# Measures Berth against its floor and prints one table. Arguments go to the
# benchmark, for example:
#
#     scripts/bench.sh -parts jobs -rounds 9
#     scripts/bench.sh -test.cpuprofile cpu.out -parts jobs
set -euo pipefail
cd "$(dirname "$0")/.."

go test -run '^$' -bench '^BenchmarkBerth$' -benchtime 1x -timeout 30m ./e2e/bench -args "$@"
