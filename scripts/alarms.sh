#!/usr/bin/env bash
# Runs a real stack under a real Prometheus server with the rules of deploy/prometheus, injects the real faults of most
# alerts, and prints one table: alert, fault, seconds to firing, seconds to silence. absences_test.go of e2e/alarms lists
# the alerts without a real fault. It needs root, for small file systems that it fills and a Docker engine of its own. Arguments go to the benchmark:
#
#     scripts/alarms.sh -alerts NoLeader,DatabaseDown
set -euo pipefail
cd "$(dirname "$0")/.."

[[ $EUID -eq 0 ]] || {
	echo "alarms: run this as root: it mounts small file systems and fills them" >&2
	exit 1
}
for program in prometheus dockerd; do
	command -v "$program" >/dev/null || {
		echo "alarms: the program $program is missing: run scripts/setup.sh alarms" >&2
		exit 1
	}
done
# A mount namespace of its own: the small file systems vanish with the run, however it ends.
unshare --mount go test -run '^$' -bench '^BenchmarkAlarms$' -benchtime 1x -count=1 -timeout 60m ./e2e/alarms -args "$@"
