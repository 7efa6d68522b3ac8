#!/usr/bin/env bash
# Measures a control plane with hundreds of machines and thousands of jobs, and
# prints one table with the bounds that apply. Arguments go to the benchmark:
#
#     scripts/bench-scale.sh -parts bare,long -running 5000
#     scripts/bench-scale.sh -agents 20 -running 50,150 -overload-for 15s
#     scripts/bench-scale.sh -agents 100 -parts overload -overload-for 1m
#     scripts/bench-scale.sh -programs /folder/with/programs/of/another/commit
set -euo pipefail
cd "$(dirname "$0")/.."

go test -run '^$' -bench '^BenchmarkScale$' -benchtime 1x -count=1 -timeout 30m ./e2e/scale -args "$@"
