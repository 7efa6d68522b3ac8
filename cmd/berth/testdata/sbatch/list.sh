#!/bin/sh
#SBATCH --array=3,7,20
#SBATCH --mem=512M --time=10:30 --export=NONE --container-image=ghcr.io\#lab/tools:1
exec ./one.sh "$SLURM_ARRAY_TASK_ID" "${SLURM_ARRAY_JOB_ID:-none}"
