#!/usr/bin/env bash
# Builds the files of a release into dist/VERSION: archives of the programs, packages for Debian and RPM
# systems, container images, the Helm chart, the list of modules of each program, the licences of these modules, and SHA256SUMS.
#
#     scripts/release.sh 1.2.3                a release
#     scripts/release.sh --rehearsal 1.2.3    the same files, for tests: any version, a changed checkout, no gates,
#                                             no signature
#
#     --out FOLDER    folder of the files (default dist/VERSION); it must not exist or be empty
#     --arch LIST     architectures, for Linux and of the command line for macOS (default amd64,arm64)
#     --programs DIR  with --rehearsal: take DIR/ARCH/NAME instead of building the programs for Linux
#
# A release needs a committed checkout, a section of CHANGELOG.md for the version, and a clean result of
# scripts/vuln.sh --strict, which reads the database in BERTH_VULNDB. MINISIGN_KEY names the secret key that
# signs SHA256SUMS; without it the files are not signed.
#
# Two builds of a commit by the same Go and C compilers give the same files: scripts/release-check.sh. The
# time of each file is the time of the commit.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
	echo "release: $*" >&2
	exit 1
}
usage() {
	sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
	exit 2
}

rehearsal= out= archs=amd64,arm64 version= programs=
while (($#)); do
	case $1 in
	--rehearsal) rehearsal=1 ;;
	--out) out=${2:?--out needs a folder} && shift ;;
	--arch) archs=${2:?--arch needs a list} && shift ;;
	--programs) programs=${2:?--programs needs a folder} && shift ;;
	-*) usage ;;
	*) [[ ! $version ]] || usage && version=$1 ;;
	esac
	shift
done
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-rc\.[0-9]+)?$ ]] ||
	fail "version ${version:-(none)}: write MAJOR.MINOR.PATCH or MAJOR.MINOR.PATCH-rc.N"
[[ ! $programs || $rehearsal ]] || fail "--programs: a release builds its programs; add --rehearsal"
IFS=, read -r -a archs <<<"$archs"
for arch in "${archs[@]}"; do
	[[ $arch == amd64 || $arch == arm64 ]] || fail "architecture $arch: allowed are amd64, arm64"
done

# section prints the text of a version in CHANGELOG.md.
section() { awk -v v="$version" '/^## /{on = ($2 == v); next} on' CHANGELOG.md; }

if [[ ! $rehearsal ]]; then
	changed=$(git status --porcelain)
	[[ ! $changed ]] || fail "the checkout has changes that no commit has:"$'\n'"$changed"
	[[ $(section) ]] || fail "CHANGELOG.md has no section ## $version"
	number=$(sed -n 's/^var Number = "\(.*\)"$/\1/p' internal/lib/buildinfo/buildinfo.go)
	[[ $number == "$version" ]] || fail "internal/lib/buildinfo has the version $number, not $version"
	[[ ! ${MINISIGN_KEY:-} || -r $MINISIGN_KEY ]] || fail "MINISIGN_KEY: cannot read $MINISIGN_KEY"
fi

out=${out:-dist/$version}
mkdir -p "$out"
[[ ! $(ls -A "$out") ]] || fail "$out has files already: remove them, or name another folder with --out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the result may depend on besides the commit: nothing of the caller's environment.
umask 022
export LC_ALL=C TZ=UTC GOFLAGS=-mod=readonly GOTOOLCHAIN=local GOAMD64=v1 GOARM64=v8.0
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

shipped=(berthd berth berth-agent berth-check berth-cloud berth-deadman berth-temporal)

# starts ARCH FOLDER runs programs of an architecture as far as their version, under the emulator of qemu for
# another one than this machine's.
starts() {
	local run=() name got
	if [[ $1 != "$(go env GOHOSTARCH)" ]]; then
		local cpu=x86_64
		[[ $1 == arm64 ]] && cpu=aarch64
		if ! command -v "qemu-$cpu-static" >/dev/null; then
			echo "release: the programs for $1 were not started: qemu-$cpu-static is missing (scripts/setup.sh release)" >&2
			return
		fi
		run=("qemu-$cpu-static" -L "/usr/$cpu-linux-gnu")
	fi
	for name in berthd berth-agent berth-check berth-cloud berth-temporal; do
		got=$("${run[@]}" "$2/$name" --version)
		[[ $got == *" $version "* || $got == *" $version" ]] || fail "$name for $1 says: $got"
	done
	echo "release: the programs for $1 start: $got" >&2
}

# archive FILE FOLDER packs a folder. Names, order, owners and times are fixed, and gzip stores no time.
archive() {
	find "$2" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
	tar --create --directory "$(dirname "$2")" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner \
		--mode=u+rwX,go+rX,go-w --mtime="@$SOURCE_DATE_EPOCH" "$(basename "$2")" | gzip -9 --no-name >"$out/$1"
}

for arch in "${archs[@]}"; do
	mkdir -p "$work/linux-$arch"
	if [[ $programs ]]; then
		cp "${shipped[@]/#/$programs/$arch/}" "$work/linux-$arch/"
	else
		scripts/programs.sh "$version" linux "$arch" "$work/linux-$arch" "${shipped[@]}"
		starts "$arch" "$work/linux-$arch"
	fi
	if [[ ! $rehearsal && $arch == "${archs[0]}" ]]; then # the others have the same modules
		scripts/vuln.sh --strict "$work/linux-$arch" >&2
	fi
	[[ $programs ]] || BERTH_VERSION=$version scripts/sbom.sh "$out/sbom/linux-$arch" "${shipped[@]/#/$work/linux-$arch/}" >&2
done
scan=("${shipped[@]/#/$work/linux-${archs[0]}/}")
if [[ ! $programs ]]; then
	for arch in "${archs[@]}"; do
		mkdir -p "$work/darwin-$arch"
		scripts/programs.sh "$version" darwin "$arch" "$work/darwin-$arch" berth
		scan+=("$work/darwin-$arch/berth")
	done
	for arch in "${archs[@]:1}"; do scan+=("${shipped[@]/#/$work/linux-$arch/}"); done
	go run ./e2e/supply/notices "${scan[@]}" >"$work/NOTICE"
else
	echo "Rehearsal with programs from elsewhere: no notices." >"$work/NOTICE"
fi

# Archives.
text=("$work/NOTICE" LICENSE README.md)
for arch in "${archs[@]}"; do
	folder=$work/tree/berth-$version-linux-$arch
	mkdir -p "$folder/bin" "$folder/systemd" "$folder/etc"
	cp "${shipped[@]/#/$work/linux-$arch/}" "$folder/bin/"
	cp deploy/systemd/* "$folder/systemd/"
	cp deploy/packages/etc/* "$folder/etc/"
	cp -r deploy/compose "$folder/compose"
	cp "${text[@]}" "$folder/"
	archive "berth-$version-linux-$arch.tar.gz" "$folder"
done
for arch in "${archs[@]}"; do
	[[ -d $work/darwin-$arch ]] || continue
	folder=$work/tree/berth-cli-$version-darwin-$arch
	mkdir -p "$folder"
	cp "$work/darwin-$arch/berth" "${text[@]}" "$folder/"
	archive "berth-cli-$version-darwin-$arch.tar.gz" "$folder"
done

# The Helm chart of the control plane, whose image has the version of the release.
cp -r deploy/chart/berthd "$work/tree/berthd"
cp LICENSE "$work/tree/berthd/"
sed -i "s/^version: .*/version: $version/; s/^appVersion: .*/appVersion: \"$version\"/" "$work/tree/berthd/Chart.yaml"
archive "berthd-$version.tgz" "$work/tree/berthd"

# Images of the static programs: NAME, and the programs in it. The authorities are those of this system.
certs=/etc/ssl/certs/ca-certificates.crt
while read -r name names; do
	for arch in "${archs[@]}"; do
		read -r -a list <<<"$names"
		go run ./e2e/supply/image -tag "localhost/berth/$name:$version" -arch "$arch" -version "$version" -time "$SOURCE_DATE_EPOCH" \
			-revision "$(git rev-parse HEAD)" -certs "$certs" -text LICENSE -text "$work/NOTICE" -out "$out/$name-$version-image-$arch.tar" \
			"${list[@]/#/$work/linux-$arch/}"
	done
done <<-END
	berthd berthd berth-check
	berth berth
	berth-temporal berth-temporal
END

for arch in "${archs[@]}"; do
	scripts/package.sh "$version" "$arch" "$work/linux-$arch" "$work/NOTICE" "$out"
done
cp "$work/NOTICE" "$out/NOTICE"
section >"$out/CHANGES-$version.md"
[[ -s $out/CHANGES-$version.md ]] || rm "$out/CHANGES-$version.md" # of a rehearsal

(cd "$out" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs -d '\n' sha256sum >SHA256SUMS)
if [[ $rehearsal ]]; then
	echo "release: rehearsal: not checked for vulnerabilities, not signed" >&2
else
	scripts/sign.sh "$out/SHA256SUMS" "berth $version"
fi
echo "release: $out has $(find "$out" -type f | wc -l) files, SHA256SUMS $(sha256sum <"$out/SHA256SUMS" | cut -c1-16)" >&2
