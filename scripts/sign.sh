#!/usr/bin/env bash
# Signs a file with the secret key of minisign that MINISIGN_KEY names, into FILE.minisig; without a key it says so:
#
#     scripts/sign.sh FILE COMMENT
#
# COMMENT is part of what is signed, and minisign shows it with a valid signature: a version, so that an older
# file of another release is noticed. Users verify with "minisign -V -P PUBLIC_KEY -m FILE".
set -euo pipefail
cd "$(dirname "$0")/.."
(($# == 2)) || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }
if [[ ! ${MINISIGN_KEY:-} ]]; then
	echo "sign: $1 is not signed: MINISIGN_KEY names no key file" >&2
	exit 0
fi
"$(scripts/tool.sh minisign)" -S -s "$MINISIGN_KEY" -t "$2" -x "$1.minisig" -m "$1" >&2
echo "sign: wrote $1.minisig" >&2
