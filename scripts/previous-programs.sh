#!/usr/bin/env bash
# Builds berthd, berth-agent and berth-deadman of an earlier commit, once, and prints their folder:
#
#     scripts/previous-programs.sh             of the commit that scripts/previous-version names
#     scripts/previous-programs.sh COMMIT      of another one
#     scripts/previous-programs.sh COMMIT PROGRAM...   other programs, into a folder of their own
#
# The source comes from the history of this repository. Where its modules equal the modules of this commit, only Berth's own
# packages are compiled, about two minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

names=(berthd berth-agent berth-deadman)
(($# <= 1)) || names=("${@:2}")
wanted=${1:-$(grep -v '^#' scripts/previous-version)}
if ! commit=$(git rev-parse --quiet --verify "$wanted^{commit}"); then
	echo "previous-programs: this clone has no commit $wanted; a shallow one needs git fetch --unshallow" >&2
	exit 1
fi
folder=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}/programs
out=$folder/${commit:0:12}
(($# <= 1)) || out+=.$(IFS=. && echo "${names[*]}")
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9 # of two that want them, one builds them
if [[ ! -d $out ]]; then
	echo "previous-programs: building the programs of $(git log -1 --format='%h, %cs' "$commit") (once)" >&2
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir "$work/source"
	git archive "$commit" | tar --extract --directory "$work/source"
	(cd "$work/source" && go build -ldflags=-w -o "$work/programs/" "${names[@]/#/./cmd/}")
	mv "$work/programs" "$out"
fi
echo "$out"
