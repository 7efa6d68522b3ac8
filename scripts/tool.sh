#!/usr/bin/env bash
# Prints the path of a program that the tests or the linters need. A program that is
# not there yet is built from its module (once; a minute or two):
#
#     scripts/tool.sh versitygw           a server that speaks S3, over a folder
#     scripts/tool.sh fake-gcs-server     one that speaks the JSON API of Google Cloud Storage, over memory
#     scripts/tool.sh staticcheck         a linter: bugs, and simpler forms of the same code
#     scripts/tool.sh revive              a linter: style, by scripts/revive.toml
set -euo pipefail

case ${1:-} in
versitygw) package=github.com/versity/versitygw/cmd/versitygw version=v1.8.0 ;;
fake-gcs-server) package=github.com/fsouza/fake-gcs-server version=v1.56.1 ;;
staticcheck) package=honnef.co/go/tools/cmd/staticcheck version=v0.8.2 ;;
revive) package=github.com/mgechev/revive version=v1.15.0 ;;
*)
	echo "usage: $0 versitygw|fake-gcs-server|staticcheck|revive" >&2
	exit 2
	;;
esac

tools=${BERTH_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}/tools
out=$tools/$1-$version
mkdir -p "$tools"
exec 9>"$tools/.lock"
flock 9 # of two that want it, one builds it
if [[ ! -x $out ]]; then
	echo "tool: building $1 $version (once; a minute or two)" >&2
	GOBIN=$tools/.new GOFLAGS='' go install "$package@$version" >&2
	mv "$tools/.new/$1" "$out"
	rm -rf "$tools/.new"
fi
echo "$out"
