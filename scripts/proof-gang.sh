#!/usr/bin/env bash
# usage: scripts/proof-gang.sh [kill|hang]
# Trains a model with PyTorch over four containers of two machines: once undisturbed,
# and again with a disturbance. The gang must go on from the last checkpoint of all
# four, and end with the very same loss.
#   kill  a container is killed in mid-epoch (the default)
#   hang  member 2 hangs in an all-reduce, in three runs: it spins, sleeps, or is
#         stopped. The hang must be found within 10 s of stall.after, and the
#         evidence must name member 2 or say that it is unsure.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-kill}
[[ "$mode" == kill || "$mode" == hang ]] || { echo "usage: scripts/proof-gang.sh [kill|hang]" >&2; exit 2; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/berth-gang.XXXXXX")
chmod 755 "$dir" # the database runs as a user of its own
pid=

end() {
  if [[ -n "$pid" ]]; then
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  fi
  for job in ${plain:-} ${ids:-}; do # a stack that is stopped leaves its containers for the next one, which there will not be
    docker ps --all --quiet --filter "label=berth.job=$job" | xargs -r docker rm --force >/dev/null
    docker network ls --quiet --filter "label=berth.job=$job" | xargs -r docker network rm >/dev/null
  done
  rm -rf "$dir"
}
trap end EXIT
trap 'exit 143' TERM INT

say() { echo "proof-gang: $*"; }
fail() { echo "proof-gang: FAILED: $*" >&2; tail -n 20 "$dir/berth-dev.log" >&2 || true; exit 1; }
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",]*\)\"\{0,1\}.*/\1/p" "$dir/stack.json" 2>/dev/null; }

go build -o bin/ ./cmd/...
image=$(scripts/example-image.sh gang)
bin/berth-dev --dir "$dir" --agents 2 --cpus 1 --memory 2GiB --image "berth-torch:1=$image" \
  --listen 127.0.0.1:0 --temporal-port 0 --ui-port 0 >"$dir/berth-dev.log" 2>&1 </dev/null &
pid=$!
until [[ -s "$dir/stack.json" ]]; do
  kill -0 "$pid" 2>/dev/null || fail "the stack did not start"
  sleep 0.2
done
BERTH_URL=$(field api) BERTH_TOKEN=$(cat "$(field token_file)")
export BERTH_URL BERTH_TOKEN

until [[ $(bin/berth machines -o json | grep -c '"state": *"ready"') -eq 2 ]]; do
  kill -0 "$pid" 2>/dev/null || fail "the stack ended"
  sleep 0.2
done

loss() { bin/berth logs "$1" --member "$2" --tail 1; }

plain=$(bin/berth submit examples/gang/job.yaml -o name)
say "undisturbed: job $plain"
bin/berth wait "$plain" --timeout 10m >/dev/null || fail "the undisturbed run did not succeed"

want=$(loss "$plain" 0)
say "undisturbed: $want"

# same checks that a disturbed run had two attempts and the loss of the undisturbed one.
same() {
  for member in 0 1 2 3; do
    got=$(loss "$1" "$member")
    say "disturbed, member $member: $got"
    [[ "$got" == "$want" && "$got" == "final loss "* ]] || fail "the loss differs"
  done
  [[ $(bin/berth show "$1" -o json | grep -c '"number"') -eq 2 ]] || fail "there were not two attempts"
}

if [[ "$mode" == hang ]]; then
  after=90 # PyTorch prints nothing while it is loaded, which takes a minute on two busy cores
  for how in spin sleep stop; do
    id=$(bin/berth submit examples/gang/job.yaml --set "workdir=$PWD/examples/gang" --set 'command=[python3, /workspace/hang.py]' \
      --env "HANG=$how" --set "stall.after=${after}s" --set stop_grace=2s -o name)
    ids="${ids:-} $id"
    say "disturbed: job $id, member 2 hangs in an all-reduce ($how)"
    bin/berth wait "$id" --timeout 10m >/dev/null || fail "the disturbed run did not succeed"
    bin/berth show "$id"
    shown=$(bin/berth show "$id" -o json)
    grep -q '"code": *"stalled"' <<<"$shown" || fail "the hang was not found"
    quiet=$(grep -o '"quiet_seconds": *[0-9]*' <<<"$shown" | grep -o '[0-9]*$' | sort -n | tail -n 1)
    [[ "$quiet" -ge $after && "$quiet" -le $((after + 10)) ]] || fail "the hang was found after $quiet s, stall.after is $after s"
    odd=$(bin/berth events "$id" | grep 'odd member') || fail "no event about the odd member"
    say "$odd"
    [[ "$odd" == *"member 2 "* || "$odd" == *"no member can be named"* ]] || fail "another member is named"
    same "$id"
  done
  say "each hang was found, and each gang went on from the checkpoint of all with the very same loss"
  exit 0
fi

id=$(bin/berth submit examples/gang/job.yaml -o name)
ids=$id
say "disturbed: job $id"
for _ in $(seq 600); do
  verified=$(bin/berth checkpoints "$id" -o json 2>/dev/null | grep -c '"verified"' || true)
  [[ "$verified" -ge 2 ]] && break
  sleep 0.2
done
[[ "$verified" -ge 2 ]] || fail "no checkpoint of all members"
victim=$(docker ps --quiet --filter "label=berth.job=$id" --filter label=berth.rank=2)
say "killing the container of member 2 in mid-epoch"
docker kill "$victim" >/dev/null
bin/berth wait "$id" --timeout 10m >/dev/null || fail "the disturbed run did not succeed"
bin/berth show "$id"

same "$id"
say "the gang went on from the checkpoint of all, and its loss is the very same"
