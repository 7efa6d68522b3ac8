#!/usr/bin/env bash
# Trains a model with PyTorch over four containers of two machines, twice: once
# undisturbed, and once with a container killed in mid-epoch. The gang must go on
# from the last checkpoint of all four, and end with the very same loss.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d "${TMPDIR:-/tmp}/berth-gang.XXXXXX")
chmod 755 "$dir" # the database runs as a user of its own
pid=

end() {
  if [[ -n "$pid" ]]; then
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  fi
  for job in ${plain:-} ${id:-}; do # a stack that is stopped leaves its containers for the next one, which there will not be
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

id=$(bin/berth submit examples/gang/job.yaml -o name)
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

want=$(loss "$plain" 0)
say "undisturbed: $want"
for member in 0 1 2 3; do
  got=$(loss "$id" "$member")
  say "disturbed, member $member: $got"
  [[ "$got" == "$want" && "$got" == "final loss "* ]] || fail "the loss differs"
done
[[ $(bin/berth show "$id" -o json | grep -c '"number"') -eq 2 ]] || fail "there were not two attempts"
say "the gang went on from the checkpoint of all, and its loss is the very same"
