#!/usr/bin/env bash
# Prepares a Debian or Ubuntu machine for Berth's tests or its demonstration:
#
#     scripts/setup.sh test     PostgreSQL, Docker, nftables, Chromium for the tests of the web pages, and
#                               promtool for the tests of alerts
#     scripts/setup.sh demo     PostgreSQL, Docker, nftables, and mmdebstrap to build the demo's image
#     scripts/setup.sh day      all of the demo's, and tmux for make day
#     scripts/setup.sh alarms   PostgreSQL, Docker, nftables, promtool and the Prometheus server for make alarms
#     scripts/setup.sh release  the C compiler for arm64, an emulator that runs programs of arm64, and rpm; with all
#                               of the demo's, for make package-test
#
# It says what it is about to install, installs only what is missing, starts
# Docker if no engine answers, and does nothing on a second run. An existing
# PostgreSQL cluster is not touched, and none is made: Berth runs its own.
# Where it may not install, it says exactly what is missing and fails.
set -euo pipefail

mode=${1:-test}
case $mode in
test | demo | day | release | alarms) ;;
*)
	echo "usage: $0 [test|demo|day|release|alarms]" >&2
	exit 2
	;;
esac

# Servers and tools of Debian live in sbin, which is not in everybody's PATH.
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { echo "setup: $*"; }
fail() {
	echo "setup: $*" >&2
	exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

have_postgres() {
	local dir
	for dir in "${PG_BINDIR:-}" "$(dirname "$(command -v postgres 2>/dev/null || echo /nonexistent/postgres)")" /usr/lib/postgresql/*/bin; do
		if [[ -n $dir && -x $dir/postgres && -x $dir/initdb ]]; then
			return 0
		fi
	done
	return 1
}

# missing prints the Debian packages whose programs are not there.
missing() {
	have_postgres || echo postgresql
	have dockerd || echo docker.io
	have docker || echo docker-cli
	have containerd || echo containerd
	have iptables || echo iptables
	have ip || echo iproute2
	have nft || echo nftables
	if [[ $mode == test ]]; then
		have jq || echo jq # examples/cloud
		have chromium || have chromium-browser || have google-chrome || echo chromium
		have promtool || echo prometheus
	fi
	if [[ $mode == alarms ]]; then
		{ have promtool && have prometheus; } || echo prometheus
		return
	fi
	if [[ $mode != test ]]; then
		have mmdebstrap || echo mmdebstrap
	fi
	if [[ $mode == day ]]; then
		have tmux || echo tmux
	fi
	if [[ $mode == release ]]; then
		if [[ $(uname -m) != aarch64 ]]; then
			have aarch64-linux-gnu-gcc || echo gcc-aarch64-linux-gnu
			[[ -e /usr/aarch64-linux-gnu/include/stdlib.h ]] || echo libc6-dev-arm64-cross
			have qemu-aarch64-static || echo qemu-user-static
		fi
		have rpm || echo rpm
		have minisign || echo minisign # as those who check a release have it
	fi
}

as_root() {
	if [[ $EUID -eq 0 ]]; then
		"$@"
	else
		sudo "$@"
	fi
}

# may_install says why not, if it may not.
may_install() {
	if ! have apt-get; then
		echo "there is no apt-get on this system"
	elif [[ $EUID -ne 0 ]] && ! have sudo; then
		echo "you are not root, and there is no sudo"
	elif [[ $EUID -ne 0 ]] && ! sudo -n true 2>/dev/null && [[ ! -t 0 ]]; then
		echo "you are not root, and sudo would have to ask for a password"
	else
		return 0
	fi
	return 1
}

install_packages() {
	local packages=("$@") reason no_cluster=
	if ! reason=$(may_install); then
		fail "missing: ${packages[*]} (Debian's names), and $reason: install them and run this again"
	fi
	say "installing: ${packages[*]}"
	as_root apt-get update -qq || say "apt-get update had errors; trying with the package lists as they are"
	# Debian's docker.io brings its own client before version 13, and has no
	# package of that name then.
	if ! apt-cache show docker-cli >/dev/null 2>&1; then
		local kept=() p
		for p in "${packages[@]}"; do
			[[ $p == docker-cli ]] && p=docker.io
			kept+=("$p")
		done
		packages=("${kept[@]}")
	fi
	if [[ " ${packages[*]} " == *" postgresql "* ]]; then
		# The package makes and starts a cluster "main" on port 5432 unless told
		# not to. Nobody here wants it.
		no_cluster=/etc/postgresql-common/createcluster.d/zz-berth-setup.conf
		as_root mkdir -p "$(dirname $no_cluster)"
		echo "create_main_cluster = false" | as_root tee $no_cluster >/dev/null
	fi
	if [[ " ${packages[*]} " == *" prometheus "* ]]; then
		unpack_prometheus
		mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep -vx prometheus)
		[[ ${#packages[@]} -gt 0 ]] || return 0
	fi
	local status=0
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null || status=$?
	if [[ -n $no_cluster ]]; then
		as_root rm -f $no_cluster
	fi
	[[ $status -eq 0 ]] || fail "apt-get install ${packages[*]} failed with status $status"
}

# unpack_prometheus takes promtool, and for make alarms the server, out of the package prometheus. An installed package
# would also run a server on port 9090, which the tests do not need.
unpack_prometheus() {
	local dir status=0 program programs=(promtool)
	[[ $mode == alarms ]] && programs+=(prometheus)
	dir=$(mktemp -d)
	(cd "$dir" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb root) || status=$?
	for program in "${programs[@]}"; do
		[[ $status -ne 0 ]] || as_root install -m 755 "$dir/root/usr/bin/$program" "/usr/local/bin/$program" || status=$?
	done
	rm -rf "$dir"
	[[ $status -eq 0 ]] || fail "cannot take ${programs[*]} out of the package prometheus (status $status)"
}

engine_answers() { timeout 30 docker network ls >/dev/null 2>&1; }

# engine_hangs succeeds if the engine answers a request for its version. Call it only
# after engine_answers has failed: the engine then runs, but its networks are
# deadlocked, as can happen with Docker 20.10 (github.com/moby/moby/pull/42545).
engine_hangs() { timeout 30 docker version >/dev/null 2>&1; }

start_engine() {
	engine_answers && return 0
	if engine_hangs && [[ -n ${CI:-} && $EUID -eq 0 ]]; then # a CI machine has no containers to keep
		say "the Docker engine hangs; killing it"
		pkill -KILL -x dockerd || true
		pkill -KILL -x containerd || true
	elif engine_hangs; then
		fail "the Docker engine runs, but does not list its networks: restart it (systemctl restart docker, or kill dockerd)"
	fi
	if docker version 2>&1 | grep -qi 'permission denied'; then
		fail "the Docker engine runs, but user $(id -un) may not use it: run as root, or join the group docker (which is as good as root)"
	fi
	if [[ $EUID -ne 0 ]] && ! { have sudo && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; }; then
		fail "no Docker engine answers, and you may not start one: start dockerd as root"
	fi
	say "starting the Docker engine"
	if [[ -d /run/systemd/system ]]; then
		as_root systemctl start docker || true
	elif [[ -x /etc/init.d/docker ]]; then
		as_root /etc/init.d/docker start >/dev/null || true
	fi
	local i
	for i in $(seq 50); do
		engine_answers && return 0
		# No init system, or one that could not: start it ourselves after 3 s.
		if [[ $i -eq 15 ]]; then
			as_root sh -c 'setsid dockerd >/var/log/dockerd.log 2>&1 </dev/null &'
		fi
		sleep 0.2
	done
	fail "the Docker engine does not answer; see /var/log/dockerd.log or journalctl -u docker"
}

have go || fail "missing: Go; install the version that go.mod names, or a later one, from https://go.dev/dl"

mapfile -t packages < <(missing)
if [[ ${#packages[@]} -gt 0 ]]; then
	install_packages "${packages[@]}"
	mapfile -t packages < <(missing)
	[[ ${#packages[@]} -eq 0 ]] || fail "still missing after the installation: ${packages[*]}"
fi
[[ $mode == alarms ]] || start_engine # make alarms starts one of its own
say "ready for: $mode"
