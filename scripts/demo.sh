#!/usr/bin/env bash
# Starts all of Berth on this machine with two machines, each with a Docker
# engine of its own, trains a model, takes one machine away in the middle, and
# leaves the stack up. `demo.sh stop` ends it; its data stays.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${BERTH_DEMO_DIR:-/var/lib/berth-demo}

field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",]*\)\"\{0,1\}.*/\1/p" "$dir/stack.json" 2>/dev/null; }

running() { local pid; pid=$(field pid); [[ -n "$pid" ]] && kill -0 "$pid" 2>/dev/null && grep -q berth-dev "/proc/$pid/cmdline" 2>/dev/null; }

stop() {
  if running; then
    echo "demo: stopping the stack in $dir"
    local pid; pid=$(field pid)
    kill -TERM "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
  fi
  rm -f "$dir/stack.json"
  [[ ! -x bin/berth-dev || ! -d "$dir" ]] || bin/berth-dev down --dir "$dir"
}

free_port() { # the port if nobody has it, else 0: any free one
  if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then echo 0; else echo "$1"; fi
}

if [[ "${1:-}" == stop ]]; then stop; exit 0; fi

echo "demo: building (the first build embeds a Temporal server and takes minutes)"
begun=$SECONDS
scripts/build.sh demo -o bin/ ./cmd/berth ./cmd/berth-dev ./cmd/berth-agent ./cmd/berth-deadman ./cmd/berth-check ./examples/digits/demo
echo "demo: built in $((SECONDS - begun)) s"
image=$(scripts/example-image.sh digits)
stop
mkdir -p "$dir"

setsid nohup bin/berth-dev --dir "$dir" --agents 2 --engines private --cpus 2 --memory 2GiB \
  --image "berth-digits:1=$image" --listen "127.0.0.1:$(free_port 7070)" \
  --temporal-port "$(free_port 7233)" --ui-port "$(free_port 8233)" >"$dir/berth-dev.log" 2>&1 </dev/null &
pid=$!
echo "demo: starting the stack in $dir"
until [[ -s "$dir/stack.json" ]]; do
  kill -0 "$pid" 2>/dev/null || { echo "demo: FAILED: the stack did not start:" >&2; tail -n 20 "$dir/berth-dev.log" >&2; exit 1; }
  sleep 0.2
done

bin/demo --stack "$dir" --url "$(field api)" --token-file "$(field token_file)"

cat <<END

demo: the stack stays up:
  API          $(field api)   (description at /docs)
  Temporal UI  $(field temporal_ui)
  Temporal     $(field temporal)
  PostgreSQL   $(field database_url)
  blobs        $(field blob_url)
  logs         $dir/berth-dev.log, $dir/machines/*/agent.log
Look around with:
  export BERTH_URL=$(field api) BERTH_TOKEN=\$(cat $(field token_file))
  bin/berth list
Stop it with: make stop
END
