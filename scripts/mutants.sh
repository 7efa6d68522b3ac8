#!/usr/bin/env bash
# Breaks Berth on purpose, one fence at a time, and makes sure that the test
# that guards it fails:
#
#     scripts/mutants.sh               every patch of e2e/mutants
#     scripts/mutants.sh epoch         those whose name contains "epoch"
#     scripts/mutants.sh --part 2/3    the second third of all
#     scripts/mutants.sh --check       only that the patches apply and name tests
#
# As many run at a time as there are cores. The tree is not touched: the compiler
# reads the patched files in place of those here (go build's -overlay). First each
# package runs all tests that its patches name, which must pass without a patch.
set -euo pipefail
cd "$(dirname "$0")/.."

part=1 parts=1 check=${MUTANTS_CHECK:-}
case ${1:-} in
--one) # of the script itself: FOLDER PATCH
	action=one
	;;
--baseline) # of the script itself: FOLDER PACKAGE TESTS
	action=baseline
	;;
--check)
	action=all check=1
	shift
	;;
--part)
	action=all
	if [[ ! ${2:-} =~ ^([1-9][0-9]*)/([1-9][0-9]*)$ ]] || ((BASH_REMATCH[1] > BASH_REMATCH[2])); then
		echo "scripts/mutants.sh: --part '${2:-}' is not I/N with I from 1 to N, as 2/3" >&2
		exit 2
	fi
	part=${BASH_REMATCH[1]} parts=${BASH_REMATCH[2]}
	shift 2
	;;
*) action=all ;;
esac

# say prints a line, and the end of a log where there is one. One process prints at a time.
say() {
	exec 9>"$work/turn"
	flock 9
	echo "$1"
	[[ -z ${2:-} ]] || tail -20 "$2"
	exec 9>&-
}

fail() {
	say "FAILED  $1: $2" "${3:-}"
	: >"$work/failed/${1//\//_}"
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

# tested runs one package's tests. Vetting and debug information would take half of the time.
tested() {
	go test -count=1 -vet=off -ldflags=-w "$@"
}

baseline() {
	local package=$1 tests=$2 log=$work/${1//\//.}.log
	tested -run "$tests" "$package" >"$log" 2>&1 || fail "$package" "its tests fail without a patch too" "$log"
}

one() {
	local patch=$1 name dir package tests log
	name=$(basename "$patch" .patch)
	dir=$work/$name log=$work/$name.log
	read -r package tests < <(sed -n 's/^Test: //p' "$patch")
	if [[ -e $work/failed/${package//\//_} ]]; then
		return
	fi
	if ! mutate "$patch" "$dir" >"$log" 2>&1; then
		fail "$name" "the patch does not apply" "$log"
	elif ! grep -rqE "^func ${tests%%/*}\(" "$package" --include='*_test.go'; then
		fail "$name" "$package has no $tests"
	elif [[ $check ]]; then
		return
	elif tested -timeout 3m -overlay "$dir/overlay.json" -run "^${tests//\//$/^}\$" "$package" >"$log" 2>&1; then
		fail "$name" "$tests passes all the same"
	elif ! grep -qE '^\s*--- FAIL|^panic: ' "$log"; then
		fail "$name" "does not build" "$log"
	else
		: >"$work/killed/$name"
		say "killed  $name by $tests"
	fi
}

case $action in
one | baseline)
	work=$2
	shift 2
	export GIT_CEILING_DIRECTORIES=$work # no repository is meant
	"$action" "$@"
	exit
	;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/failed" "$work/killed"
export MUTANTS_CHECK=$check
printf '%s\n' e2e/mutants/*"${1:-}"*.patch | awk -v i="$part" -v n="$parts" 'NR % n == i % n' >"$work/patches"
if [[ -z $check ]]; then
	# A package and an expression of its top-level tests on each line.
	xargs sed -n 's/^Test: //p' <"$work/patches" | sed 's,/[^/ ]*$,,' |
		awk '{ sub("/.*", "", $2); if (!seen[$0]++) all[$1] = all[$1] (all[$1] ? "|" : "") $2 } END { for (p in all) print p, "^(" all[p] ")$" }' |
		xargs -P "$(nproc)" -L 1 scripts/mutants.sh --baseline "$work"
fi
xargs -P "$(nproc)" -n 1 scripts/mutants.sh --one "$work" <"$work/patches"

failed=$(ls "$work/failed" | wc -l)
if ((failed)); then
	echo "== $failed mutants or packages failed"
	exit 1
fi
[[ -n $check ]] || echo "== all $(ls "$work/killed" | wc -l) mutants killed"
