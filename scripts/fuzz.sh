#!/usr/bin/env bash
# Runs each fuzz target of the tree for a time, by default 10 s, and names those that failed. Go
# stores a failing input below testdata/fuzz/ of the package, where make test repeats it. A first
# run compiles all dependencies again, with counters for coverage:
#
#     scripts/fuzz.sh                     every target
#     scripts/fuzz.sh 1m Cursor           those whose name contains "Cursor", a minute each
set -euo pipefail
cd "$(dirname "$0")/.."

time=${1:-10s} part=${2:-} failed=()
while IFS=: read -r file line; do
	target=$(sed -E 's/^func (Fuzz[A-Za-z0-9]*)\(.*/\1/' <<<"$line")
	[[ $target == *"$part"* ]] || continue
	package=./$(dirname "$file")
	echo "== $package $target, $time"
	go test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "$time" || failed+=("$package $target")
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -E '^func Fuzz[A-Za-z0-9]*\(f \*testing\.F\)' | sort)
if ((${#failed[@]})); then
	printf '== FAILED %s\n' "${failed[@]}"
	exit 1
fi
echo "== no target failed"
