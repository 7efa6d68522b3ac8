#!/usr/bin/env bash
# Launches machines of a fake cloud for waiting jobs while workers and leaders are
# killed at every failpoint of the launch path, and prints one table. A fifth of
# the create calls take effect and then fail; new instances are listed late; all
# delays of launches are a tenth. Before that, a database is restored under machines
# of the cloud: none may be killed. The first argument is the number of machines:
#
#     scripts/proof-launches.sh 200
set -euo pipefail
cd "$(dirname "$0")/.."

# One after the other: the second one measures times.
for test in TestARestoredDatabaseKillsNoMachineOfACloud TestLaunchesUnderKills; do
	go test ./e2e/chaos -run "^$test\$" -count=1 -v -timeout 100m -args -launches "${1:-1000}"
done
