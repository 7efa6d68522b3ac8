#!/bin/sh
# power.sh on|off HOST stands for the program that switches machines.
echo "$*" >>"${POWER_LOG:?}"
