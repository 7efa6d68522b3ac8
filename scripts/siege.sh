#!/usr/bin/env bash
# Attacks a control plane as hostile callers may, beside one good caller and two
# agents, and prints what was expected and what was seen. Arguments go to the
# benchmark:
#
#     scripts/siege.sh -attacks tail,join
#     scripts/siege.sh -attack-for 5s -tokenless-for 6s -quiet-for 20s
#     scripts/siege.sh -programs /folder/with/programs/of/another/commit
set -euo pipefail
cd "$(dirname "$0")/.."

go test -run '^$' -bench '^BenchmarkSiege$' -benchtime 1x -count=1 -timeout 30m ./e2e/siege -args "$@"
