# Sourced by scripts that build, in bash. With the default of 100 the Go toolchain spends a sixth of its CPU time on
# the collection of garbage. With 300 a compiler uses up to twice the memory, so machines below 8 GiB keep the default.
if [[ -z ${GOGC:-} ]] && awk '/^MemTotal:/ { exit $2 < 7500000 }' /proc/meminfo; then
	export GOGC=300
fi
