#!/usr/bin/env bash
# Breaks Berth on purpose, one fence at a time, and makes sure that the test
# that guards it fails:
#
#     scripts/mutants.sh            every patch of e2e/mutants
#     scripts/mutants.sh epoch      those whose name contains "epoch"
#     scripts/mutants.sh --check    only that the patches apply and name tests
#
# The tree is not touched: the compiler reads the patched files in place of
# those here (go build's -overlay).
set -euo pipefail
cd "$(dirname "$0")/.."

check=
if [[ "${1:-}" == --check ]]; then
	check=1
	shift
fi
work=$(mktemp -d)
export GIT_CEILING_DIRECTORIES=$work # no repository is meant
trap 'rm -rf "$work"' EXIT
killed=0 failed=0

fail() {
	echo "FAILED  $1: $2"
	failed=$((failed + 1))
}

# mutate applies one patch to copies and writes the overlay.
mutate() {
	local patch=$1 dir=$2 file pairs=
	mkdir -p "$dir"
	while read -r file; do
		mkdir -p "$dir/$(dirname "$file")"
		cp "$file" "$dir/$file"
		pairs+="${pairs:+,}\"$PWD/$file\":\"$dir/$file\""
	done < <(sed -n 's|^+++ b/||p' "$patch")
	(cd "$dir" && git apply -C1 -) <"$patch" || return
	echo "{\"Replace\":{$pairs}}" >"$dir/overlay.json"
}

for patch in e2e/mutants/*"${1:-}"*.patch; do
	name=$(basename "$patch" .patch)
	read -r package tests < <(sed -n 's/^Test: //p' "$patch")
	dir=$work/$name
	if ! mutate "$patch" "$dir" >"$work/log" 2>&1; then
		fail "$name" "the patch does not apply: $(tail -1 "$work/log")"
		continue
	fi
	if ! grep -rqE "^func ${tests%%/*}\(" "$package" --include='*_test.go'; then
		fail "$name" "$package has no $tests"
		continue
	fi
	[[ -n $check ]] && continue
	if ! go test -count=1 -run "^${tests//\//$/^}\$" "$package" >"$work/log" 2>&1; then
		fail "$name" "$tests fails without the patch too"
		tail -20 "$work/log"
	elif go test -count=1 -timeout 3m -overlay "$dir/overlay.json" -run "^${tests//\//$/^}\$" "$package" >"$work/log" 2>&1; then
		fail "$name" "$tests passes all the same"
	elif ! grep -qE '^\s*--- FAIL|^panic: ' "$work/log"; then
		fail "$name" "does not build"
		tail -20 "$work/log"
	else
		killed=$((killed + 1))
		echo "killed  $name by $tests"
	fi
done
if ((failed)); then
	echo "== $failed mutants live or are broken"
	exit 1
fi
[[ -n $check ]] || echo "== all $killed mutants killed"
