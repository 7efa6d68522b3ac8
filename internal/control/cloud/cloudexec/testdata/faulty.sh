#!/bin/sh
# faulty.sh STATE PROGRAM [ARGUMENT...] runs the program, but with the fault of the file STATE/fault if there is one.
state=$1
shift
fault=none
if mv "$state/fault" "$state/fault.taken" 2>/dev/null; then
	fault=$(cat "$state/fault.taken")
fi
case $fault in
none) exec "$@" ;;
before)
	echo "lost before the effect" >&2
	exit 1
	;;
after)
	"$@" >/dev/null
	echo "lost after the effect" >&2
	exit 1
	;;
hang) sleep 1000 ;;
unsent) echo '{"error": {"kind": "throttle", "unsent": true, "message": "as the test asked"}}' ;;
*) echo "{\"error\": {\"kind\": \"$fault\", \"message\": \"as the test asked\"}}" ;;
esac
