#!/usr/bin/env bash
# Prints the path of a program that the tests or the linters need. A program that is
# not there yet is built from its module (once; a minute or two):
#
#     scripts/tool.sh versitygw           a server that speaks S3, over a folder
#     scripts/tool.sh fake-gcs-server     one that speaks the JSON API of Google Cloud Storage, over memory
#     scripts/tool.sh ec2-metadata-mock   Amazon's mock of the metadata service of EC2
#     scripts/tool.sh temporal-server     Temporal's server program, of the version in go.mod
#     scripts/tool.sh temporal-sql-tool   its tool for the schema in SQL
#     scripts/tool.sh staticcheck         a linter: bugs, and simpler forms of the same code
#     scripts/tool.sh revive              a linter: style, by scripts/revive.toml
#     scripts/tool.sh govulncheck         finds known vulnerabilities that a program reaches
#     scripts/tool.sh cyclonedx-gomod     lists the modules of a program in the format CycloneDX
#     scripts/tool.sh nfpm                makes packages for Debian and for RPM systems
#     scripts/tool.sh minisign            signs files
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
versitygw) package=github.com/versity/versitygw/cmd/versitygw version=v1.8.0 ;;
fake-gcs-server) package=github.com/fsouza/fake-gcs-server version=v1.56.1 ;;
ec2-metadata-mock) package=github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock version=v1.13.0 ;;
temporal-server) package=go.temporal.io/server/cmd/server version=$(go list -m -f '{{.Version}}' go.temporal.io/server) ;;
temporal-sql-tool) package=go.temporal.io/server/cmd/tools/sql version=$(go list -m -f '{{.Version}}' go.temporal.io/server) ;;
staticcheck) package=honnef.co/go/tools/cmd/staticcheck version=v0.8.2 ;;
revive) package=github.com/mgechev/revive version=v1.15.0 ;;
govulncheck) package=golang.org/x/vuln/cmd/govulncheck version=v1.8.0 ;;
cyclonedx-gomod) package=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod version=v1.10.0 ;;
nfpm) package=github.com/goreleaser/nfpm/v2/cmd/nfpm version=v2.44.0 ;;
minisign) package=aead.dev/minisign/cmd/minisign version=v0.3.0 ;;
*)
	echo "usage: $0 versitygw|fake-gcs-server|ec2-metadata-mock|temporal-server|temporal-sql-tool|staticcheck|revive|govulncheck|cyclonedx-gomod|nfpm|minisign" >&2
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
	mkdir -p "$tools/.new"
	if [[ $package == go.temporal.io/* ]]; then
		# With the versions of our own go.mod, whose packages are built for berth-dev already. The
		# program needs a module or two more, which go.mod must not list for it.
		cp go.mod go.sum "$tools/.new/"
		go get -modfile="$tools/.new/go.mod" "$package@$version" >&2
		GOFLAGS='' go build -modfile="$tools/.new/go.mod" -mod=mod -ldflags='-s -w' -o "$tools/.new/$1" "$package" >&2
	else
		flags=()
		# Its own hash is part of each list that it writes, so it is built without paths of this machine.
		if [[ $1 == cyclonedx-gomod ]]; then export CGO_ENABLED=0 && flags=(-trimpath); fi
		GOBIN=$tools/.new GOFLAGS='' go install "${flags[@]}" "$package@$version" >&2
	fi
	mv "$tools/.new/$1" "$out"
	rm -rf "$tools/.new"
fi
echo "$out"
