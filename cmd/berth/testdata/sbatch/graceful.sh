#!/bin/bash
#SBATCH --job-name="Long Run_3"
#SBATCH --time=06:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --no-requeue
#SBATCH --mem=2G
#SBATCH --export=NONE
#BERTH --image=debian:12
trap 'kill -TERM "$child"; wait "$child"' TERM
./simulate & child=$!
wait "$child"
