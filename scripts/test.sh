#!/usr/bin/env bash
# Runs every test, and says once more at its end what failed. `--compile` only
# builds the tests and the commands that they run, so that a build's minutes are
# printed apart from the suite's; what is missing or old is built in any case.
set -euo pipefail
from=$(pwd -P)
cd "$(dirname "$0")/.."
root=$(pwd -P)
bins=$root/bin/tests # packages/ the tests, programs/ and failpoints/ the commands, logs/ what tests print

# Packages that embed the Temporal server or the SDK of a cloud are tested without the race detector:
# it would double a build of minutes and watch somebody else's code. So is the
# simulator, which only computes, ten times as long: what it runs, placement and
# scheduler, is watched in the scheduler's tests.
plain='^berth/(internal/devstack/temporaldev|internal/control/cloud/ec2|internal/control/cloud/gce|cmd/berth-cloud|cmd/berth-dev|cmd/berth-temporal|cmd/berth-sim|e2e)(/|$)'
# So are packages that cannot have a race of their own: they start no goroutine and write no variable of
# the package. testbuild_test.go keeps this true.
pure='^berth(/(failure|lifecycle|placement(/[a-z]+)?|spec|wire|internal/control/(authority|calendar|cloud|saveinterval|scaler)|internal/lib/(buildinfo|enginesilence|flags|glossary|golden|jobfile|sbatch|sealer|svgplot|timeseries|treetar)))?$'
# The chaos suite comes last and alone: it fills the machine by itself.
chaos=e2e/chaos
# Those that take longest begin first, so that no core is idle at the end.
longest=(e2e/proof db internal/machine/agent e2e internal/machine/docker internal/control/scheduler activities/node/fakeruntime cmd/berth-sim cmd/berth placement api)

compile() {
  local all begun=$SECONDS
  local -x GOGC=${GOGC:-} # the tests themselves run with the caller's
  # shellcheck source=scripts/build-env.sh
  source scripts/build-env.sh
  all=$(go list ./...)
  echo "== building the programs and test binaries"
  rm -rf "$bins/packages"
  mkdir -p "$bins/packages"
  go version >"$bins/building"
  # Commands are linked below, where their files are kept, or tested: `go build ./...` would link each and discard it.
  # No test builds the examples.
  # shellcheck disable=SC2046
  scripts/build.sh "== programs" $(go list -f '{{if ne .Name "main"}}{{.ImportPath}}{{end}}' ./...) ./examples/...
  # Every package with a file that only this tag compiles.
  go vet -tags failpoints ./internal/lib/failpoint ./activities/control ./api ./internal/control/autoscale ./internal/control/scheduler ./internal/machine/agent ./workers ./cmd/berthd ./cmd/berth-agent
  go vet ./...
  scripts/lint.sh
  scripts/tool.sh versitygw >/dev/null
  scripts/tool.sh fake-gcs-server >/dev/null
  scripts/tool.sh govulncheck >/dev/null
  scripts/tool.sh cyclonedx-gomod >/dev/null
  scripts/tool.sh nfpm >/dev/null
  scripts/tool.sh minisign >/dev/null
  # As e2e/commands does, which finds them here.
  go build -ldflags=-w -o "$bins/programs/" ./cmd/berth-dev ./cmd/berthd ./cmd/berth-agent ./cmd/berth-deadman ./cmd/berth-check ./cmd/berth ./cmd/berth-cloud ./cmd/berth-temporal ./e2e/faultcloud
  go build -ldflags=-w -tags failpoints -o "$bins/failpoints/" ./cmd/berthd ./cmd/berth-agent ./cmd/berth-check ./e2e/faultcloud
  # What runs in containers, for the cache: it takes all of another build of the standard library.
  CGO_ENABLED=0 GOFLAGS='' go build -trimpath -buildvcs=false -ldflags='-s -w -buildid=' -o "$bins/testprog" ./activities/node/runtimetest/testprog
  CGO_ENABLED=0 go build -o "$bins/pause" ./internal/devstack/dockerd/testdata/pause
  # The tests' dependencies first, for the progress that go test does not show.
  # shellcheck disable=SC2046
  scripts/build.sh "== with the race detector" -race $(grep -vE "$plain|$pure" <<<"$all")
  # shellcheck disable=SC2046
  go test -race -vet=off -count=1 -exec "$root/scripts/test.sh --keep" $(grep -vE "$plain|$pure" <<<"$all") >/dev/null
  # shellcheck disable=SC2046
  go test -vet=off -count=1 -exec "$root/scripts/test.sh --keep" $(grep -E "$plain|$pure" <<<"$all") >/dev/null
  mv "$bins/building" "$bins/built" # with the time at which it began
  echo "== built in $((SECONDS - begun)) s"
}

# built reports whether what is built is of this very tree.
built() {
  [[ -e $bins/built && $(go version) == "$(<"$bins/built")" ]] &&
    [[ -z $(find . \( -path ./.git -o -path ./bin -o -path ./.cache \) -prune -o -newer "$bins/built" -print -quit) ]]
}

# one runs the tests of a package as go test does, and prints what they say only
# if they fail.
one() {
  local log=$bins/logs/berth.${1//\//.} package=berth/$1 begun=$SECONDS status=0
  cd "$root/$1"
  # The proofs wait for fences and silences most of the time, with little work between.
  if [[ $1 == e2e/proof ]]; then abreast=$((${abreast:-4} * 3 / 2)); fi
  # A test that hangs ends its package with the stacks of all goroutines, well before CI gives up the whole run.
  local limit=20m
  case $1 in e2e/proof | internal/machine/agent | db | e2e) limit=45m ;; esac
  local TIMEFORMAT='%U %S' used # of the CPU, in seconds, with the child processes that have ended
  used=$({ time "$bins/packages/$1/test" -test.paniconexit0 -test.timeout="$limit" -test.parallel="${abreast:-4}" >"$log" 2>&1; } 2>&1) || status=$?
  used=$(awk '{ printf "%.0f", $1 + $2 }' <<<"$used")
  exec 9>"$bins/turn" # one package at a time prints
  flock 9
  if ((status)); then
    cat "$log"
    printf 'FAIL\t%s\t%ss\tcpu %ss\n' "${package%/.}" "$((SECONDS - begun))" "$used"
  else
    rm "$log"
    printf 'ok  \t%s\t%ss\tcpu %ss\n' "${package%/.}" "$((SECONDS - begun))" "$used"
  fi
  return "$status"
}

# summary repeats the first lines of what failed: a long log may be cut to its end.
summary() {
  local log
  for log in "$bins"/logs/*; do
    echo "-- ${log##*/}"
    awk '/its workflow:/ { left = 30 } /--- FAIL|^panic:|DATA RACE|BREACH:|never:|^vulnerabilities: (RED|[^ ]*:)/ { left = 6 } left-- > 0 { print substr($0, 1, 500) }' "$log" | head -n 40
  done
}

case ${1:-} in
--compile)
  compile
  exit
  ;;
--keep) # go test calls this in a package's folder, with the test binary
  mkdir -p "$bins/packages/${from#"$root"}"
  cp "$2" "$bins/packages/${from#"$root"}/test"
  exit
  ;;
--one)
  one "$2"
  exit
  ;;
esac

# sweep removes what killed agents have left on the host: tables of nftables and networks. With some dozens of them
# each run of nft and iptables, of which Docker makes many, takes seconds on a busy machine. It removes nothing while
# an agent or an engine besides the machine's own runs, or while the machine's own engine has a container of Berth.
sweep() {
  local table
  [[ $EUID -eq 0 ]] && command -v nft >/dev/null || return 0
  if pgrep -x berth-agent >/dev/null || (($(pgrep -cx dockerd || true) > 1)) || [[ $(docker ps -q -f label=berth.cluster) ]]; then
    return 0
  fi
  docker network ls -q -f label=berth.cluster | xargs -r docker network rm >/dev/null || true
  for table in $(nft list tables inet | awk '$3 ~ /^berth_[0-9a-f]+$/ { print $3 }'); do
    nft delete table inet "$table"
  done
}

built || compile
sweep
begun=$SECONDS failed=0
rm -rf "$bins/logs"
mkdir -p "$bins/logs"
cores=$(nproc)
export abreast=$((cores < 4 ? 4 : cores)) # tests of a package at a time: most wait more than they work
export PATH="$(go env GOROOT)/bin:$PATH"
# A program under the race detector waits for a second before it exits.
export GORACE="atexit_sleep_ms=50 ${GORACE:-}"

# It reads all modules, half a minute of CPU time, in which it has what the tests leave.
nice -n 19 scripts/vuln.sh "$bins/programs" >"$bins/logs/vulnerabilities" 2>&1 &
vulnerabilities=$!
trap 'kill "$vulnerabilities" 2>/dev/null || true' EXIT # background processes ignore Ctrl-C

echo "== tests of all packages, $cores at a time"
packages=$(cd "$bins/packages" && find . -name test -type f -printf '%P\n' | sed -E 's,/?test$,,; s,^$,.,' | grep -vx "$chaos" | sort)
{ printf '%s\n' "${longest[@]}" | grep -Fx "$packages"; grep -vFx "$(printf '%s\n' "${longest[@]}")" <<<"$packages"; } |
  xargs -P "$cores" -n 1 "$root/scripts/test.sh" --one || failed=1
echo "== chaos: the fixed cells; make chaos has more"
chaos_begun=$SECONDS
(cd "$chaos" && "$bins/packages/$chaos/test" -test.v -test.paniconexit0 -test.timeout=30m -seed 1) 2>&1 |
  tee "$bins/logs/berth.${chaos//\//.}" && rm "$bins/logs/berth.${chaos//\//.}" || failed=1
echo "== chaos took $((SECONDS - chaos_begun)) s"
echo "== known vulnerabilities"
vulnerable=0
wait "$vulnerabilities" || vulnerable=1
cat "$bins/logs/vulnerabilities"
if ((vulnerable)); then failed=1; else rm "$bins/logs/vulnerabilities"; fi
echo "== tests took $((SECONDS - begun)) s"
if ((failed)); then
  echo "== FAILED"
  summary
  exit 1
fi
echo "== all passed"
