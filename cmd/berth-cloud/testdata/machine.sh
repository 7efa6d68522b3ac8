#!/bin/sh
# machine.sh stands for berth-agent: a process with children, one of them in another session. It writes its
# arguments and settings down.
{
	echo "$@"
	env
} >&2
sleep 1000 &
setsid sleep 1000 &
exec sleep 1000
