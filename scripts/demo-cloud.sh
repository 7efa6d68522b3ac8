#!/usr/bin/env bash
# Starts all of Berth on this machine with one machine on premises, and a cloud
# of machines that do not exist yet: berth-cloud local, each with a Docker
# engine of its own. A job of an hour fills the machine on premises, so Berth
# launches a machine for a training job by a burst policy. The cloud takes that
# machine back, another one continues from the checkpoint, and the bill is
# compared with the times and prices. Everything is stopped at the end; logs stay.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${BERTH_DEMO_CLOUD_DIR:-/var/lib/berth-demo-cloud}

field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",]*\)\"\{0,1\}.*/\1/p" "$dir/stack.json" 2>/dev/null; }

stop() { # everything, also after a fault
  local status=0
  if [[ -n "${stack:-}" ]] && kill -TERM "$stack" 2>/dev/null; then
    wait "$stack" || true
  fi
  [[ ! -d "$dir/cloud" ]] || bin/berth-cloud reclaim --dir "$dir/cloud" --all || status=$?
  [[ ! -d "$dir" ]] || bin/berth-dev down --dir "$dir" || status=$?
  return "$status"
}

finish() { # with the first failure's exit status
  local status=$?
  stop || status=$((status ? status : $?))
  exit "$status"
}

free_port() { # the first free port from the given one
  local port=$1
  while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
  echo "$port"
}

if [[ $EUID -ne 0 ]]; then
  echo "demo-cloud: run it as root: each machine has a Docker engine of its own" >&2
  exit 1
fi
if [[ -e "$dir" && ! -e "$dir/demo-cloud" ]]; then
  echo "demo-cloud: $dir is no folder of this demonstration; name another one in BERTH_DEMO_CLOUD_DIR" >&2
  exit 1
fi

echo "demo: building (the first build embeds a Temporal server and takes minutes)"
begun=$SECONDS
scripts/build.sh demo -o bin/ ./cmd/berth ./cmd/berth-dev ./cmd/berth-agent ./cmd/berth-deadman ./cmd/berth-cloud ./examples/digits/demo
echo "demo: built in $((SECONDS - begun)) s"
image=$(scripts/example-image.sh digits)

begun=$SECONDS
stop # what an earlier run has left
rm -rf "$dir"
mkdir -p "$dir"
touch "$dir/demo-cloud"
port=$(free_port 7070)

# Offers with example prices. The cheapest one is the spot machine in zone a.
cat >"$dir/offers.csv" <<END
provider,region,zone,type,market,cpus,memory_mib,gpus,gpu_type,price_per_hour,source,as_of
local,demo-1,demo-1a,small,spot,2,2048,0,,7.20,example value,2026-11-26
local,demo-1,demo-1b,small,spot,2,2048,0,,9.00,example value,2026-11-26
local,demo-1,demo-1b,small,on_demand,2,2048,0,,18.00,example value,2026-11-26
END
cat >"$dir/cloud.yaml" <<END
url: http://127.0.0.1:$port
offers: $dir/offers.csv
providers:
  local:
    kind: exec
    command: [$PWD/bin/berth-cloud, local, --dir, $dir/cloud, --agent, $PWD/bin/berth-agent, --offers, $dir/offers.csv,
      --engines=private, "--image=berth-digits:1=$image"]
    regions: [demo-1]
END
cat >"$dir/burst.yaml" <<END
burst:
  allow: [local/demo-1]
  when: {planned_wait_over: 10m}
  spot: prefer
  max_price_per_hour: 20
  spend: {period: month, limit: 100}
  max_machines: 2
  idle: 10s
END

trap finish EXIT
bin/berth-dev --dir "$dir" --agents 1 --engines private --cpus 2 --memory 2GiB \
  --image "berth-digits:1=$image" --listen "127.0.0.1:$port" --cloud "$dir/cloud.yaml" \
  --temporal-port "$(free_port 7233)" --ui-port "$(free_port 8233)" >"$dir/berth-dev.log" 2>&1 </dev/null &
stack=$!
echo "demo: starting the stack in $dir"
until [[ -s "$dir/stack.json" ]]; do
  kill -0 "$stack" 2>/dev/null || { echo "demo: FAILED: the stack did not start:" >&2; tail -n 20 "$dir/berth-dev.log" >&2; exit 1; }
  sleep 0.2
done
BERTH_URL=$(field api) BERTH_TOKEN=$(cat "$(field token_file)")
export BERTH_URL BERTH_TOKEN

echo "demo: the burst policy of the tenant, by: berth burst set default -f burst.yaml"
sed 's/^/    /' "$dir/burst.yaml"
bin/berth burst set default -f "$dir/burst.yaml" >"$dir/burst.log"

if ! bin/demo -cloud -limit 15m -cloud-machines "$dir/cloud" -stack "$dir" -url "$BERTH_URL" -token-file "$(field token_file)"; then
  echo "demo: FAILED after $((SECONDS - begun)) s; logs: $dir/berth-dev.log, $dir/machines/*/agent.log, $dir/cloud/*/log" >&2
  exit 1
fi

for command in "machine launches --all" "usage" "show digits"; do
  printf '\n$ berth %s\n' "$command"
  # shellcheck disable=SC2086 # the words of the command
  bin/berth $command
done
echo
echo "demo: all steps were checked, in $((SECONDS - begun)) s after the build; stopping the stack, logs stay in $dir"
