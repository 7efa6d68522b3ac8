#!/bin/bash
# A cloud program for a rack of machines that are off until they are needed. Berth runs it once for
# each call, with a request on standard input (docs/operate/cloud-exec.md):
#
#     bare-metal.sh STATE POWER
#
# STATE is a folder with the file hosts, one machine a line:
#
#     # host  region  zone   type      cpus  memory_mib  gpus  gpu_type  price_per_hour
#     node-1  berlin  rack-a 8xH100    192   2000000     8     H100      12.50
#
# POWER is a program that is called as "POWER on HOST" and "POWER off HOST", for example around ipmitool.
# It exits with 0 once the machine is on or off, also if it was before. Before a machine is switched on, the
# file STATE/bootstrap/HOST.json holds the data with which it joins; serve it to that machine only.
#
# It needs bash, jq and flock. All instances ever created stay in STATE/launches, one file a token: an
# old token must never create a second instance.
set -euo pipefail
umask 077

state=$1 power=$2
mkdir -p "$state/launches" "$state/bootstrap"
request=$(cat)
exec 9>"$state/lock"
flock 9 # one call at a time

# get reads a field of the request.
get() { jq -er "$1" <<<"$request"; }

# refuse answers with an error that is certain. Any other failure exits with a status, and is uncertain.
refuse() {
	jq -cn --arg kind "$1" --arg scope "$2" --arg message "$3" '{error: {$kind, $scope, $message}}'
	exit
}

# store writes standard input to a file that is whole or absent.
store() {
	cat >"$1.new"
	sync "$1.new"
	mv "$1.new" "$1"
}

# rows prints the machines of the file hosts as JSON, one a line.
rows() {
	grep -v '^ *\(#\|$\)' "$state/hosts" | jq -cR '[splits(" +")] | {
		host: .[0], offering: {region: .[1], zone: .[2], type: .[3], market: "on_demand"},
		cpus: (.[4] | tonumber), memory_mib: (.[5] | tonumber), gpus: (.[6] | tonumber), gpu_type: .[7],
		price: (.[8] | tonumber)}'
}

# launches prints all records, one a line.
launches() { find "$state/launches" -name '*.json' -exec cat {} +; }

# instance prints the answer for a record.
instance() { jq -c '{instance: .instance}' "$1"; }

create() {
	local token hash record host wanted
	token=$(get .launch.token)
	[[ $token =~ ^[0-9a-f]{32}$ ]] || refuse spec token "the token is not 32 hex digits"
	hash=$(jq -cS .launch <<<"$request" | sha256sum | cut -d' ' -f1)
	record=$state/launches/$token.json
	if [[ -e $record ]]; then
		jq -e --arg hash "$hash" '.hash == $hash and .instance.state == "running"' "$record" >/dev/null ||
			refuse mismatch "$token" "the token belongs to another request, or to an ended instance"
	else
		wanted=$(get '.launch.offering | "\(.region)/\(.zone // "")/\(.type)/\(.market)"')
		host=$(jq -rn --slurpfile hosts <(rows) --slurpfile used <(launches) --argjson r "$request" '
			[$used[] | select(.instance.state != "terminated") | .host] as $taken | $r.launch.offering as $o |
			first($hosts[] | select(.offering.region == $o.region and .offering.type == $o.type
				and .offering.market == $o.market and (($o.zone // "") == "" or .offering.zone == $o.zone))
				| .host | select(. as $h | $taken | index($h) | not)) // ""')
		[[ $host ]] || refuse capacity "$wanted" "no machine is free"
		# The record first: after a crash the same token finds the same machine.
		jq -cn --arg host "$host" --arg hash "$hash" --argjson r "$request" --slurpfile hosts <(rows) '
			{$host, $hash, instance: ($r.launch | {id: "\($host)-\(.token[:8])", token, cluster, pool, machine, n,
			state: "running", offering: ($hosts[] | select(.host == $host) | .offering),
			created: (now | todate)})}' | store "$record"
	fi
	host=$(jq -r .host "$record")
	jq -c .launch.bootstrap <<<"$request" | store "$state/bootstrap/$host.json"
	"$power" on "$host" >&2
	instance "$record"
}

find_launch() {
	local record
	record=$state/launches/$(get .launch.token).json
	[[ -e $record ]] || refuse not_found "" "no machine has this token"
	instance "$record"
}

list() {
	launches | jq -cs --argjson r "$request" '{instances: [.[].instance | select(.cluster == $r.cluster)
		| select(.offering.region as $region | $r.regions // [$region] | index($region))]}'
}

terminate() {
	local record host
	record=$(launches | jq -r --argjson r "$request" 'select(.instance.id == $r.instance.id) | .instance.token')
	[[ $record ]] || refuse not_found "" "no machine has this id"
	record=$state/launches/$record.json
	if jq -e '.instance.state != "terminated"' "$record" >/dev/null; then
		host=$(jq -r .host "$record")
		"$power" off "$host" >&2
		rm -f "$state/bootstrap/$host.json"
		jq -c '.instance.state = "terminated"' "$record" | store "$record"
	fi
	echo '{}'
}

offers() {
	rows | jq -cs --argjson r "$request" '{offers: [group_by(.offering)[] | .[0]
		| select(.offering.region as $region | $r.regions // [$region] | index($region))
		| .offering + {cpus, memory_mib, gpus, gpu_type, price_per_hour: .price, source: "hosts", as_of: (now | todate)}]}'
}

[[ $(get .protocol) == 1 ]] || refuse spec protocol "this program speaks protocol 1"
case $(get .call) in
create) create ;;
find) find_launch ;;
list) list ;;
terminate) terminate ;;
offers) offers ;;
*) refuse spec call "this program has no such call" ;;
esac
