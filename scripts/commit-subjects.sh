#!/usr/bin/env bash
# Checks the subjects of commits: `area: imperative`, at most 72 characters, no
# full stop. CONTRIBUTING.md describes the rule.
#
#     scripts/commit-subjects.sh          # commits since the merge base with main; on main, the last 20
#     scripts/commit-subjects.sh A..B     # the commits of a range
#     scripts/commit-subjects.sh -        # subjects on standard input, one on each line
set -euo pipefail
export LC_ALL=C.UTF-8 # lengths count characters

subjects() {
	if [ $# -gt 0 ] && [ "$1" = - ]; then
		cat
		return
	fi
	if [ $# -gt 0 ]; then
		git log --no-merges --format=%s "$1"
		return
	fi
	git rev-parse --git-dir >/dev/null 2>&1 || return 0 # an archive without history
	local main base=""
	for main in origin/main main; do
		if base=$(git merge-base HEAD "$main" 2>/dev/null); then
			break
		fi
	done
	if [ -n "$base" ] && [ "$base" != "$(git rev-parse HEAD)" ]; then
		git log --no-merges --format=%s "$base..HEAD"
	else
		git log --no-merges --format=%s -20
	fi
}

# fault prints what is wrong with a subject, and nothing for a good one.
fault() {
	local subject=$1 area='[A-Za-z0-9._][A-Za-z0-9._/-]*'
	if ! [[ $subject =~ ^$area(,\ $area)*:\ (.+)$ ]]; then
		echo 'want "area: imperative", where area is a package or a folder'
		return
	fi
	local text=${BASH_REMATCH[2]}
	local first=${text%% *}
	if [ ${#subject} -gt 72 ]; then
		echo "has ${#subject} characters; at most 72 are allowed"
	elif [[ $subject == *. ]]; then
		echo 'ends with a full stop'
	elif [[ $first =~ ^[A-Z][a-z]+$ ]]; then
		echo "starts the text with a capital letter: $first"
	elif [[ $first =~ ^(need|embed|feed|shed|seed|speed|proceed|exceed|bring|string|ring|bypass|focus|bus)$ ]]; then
		:
	elif [[ $first =~ ^[a-z]+(ed|ing)$ || $first =~ ^[a-z]+[^s]s$ ]]; then
		echo "does not start with a verb in the imperative: $first"
	fi
}

bad=0
while IFS= read -r subject; do
	why=$(fault "$subject")
	if [ -n "$why" ]; then
		printf 'commit subject "%s": %s\n' "$subject" "$why" >&2
		bad=1
	fi
done < <(subjects "$@")
exit $bad
