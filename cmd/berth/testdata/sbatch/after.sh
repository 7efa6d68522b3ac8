#!/bin/bash
#SBATCH --dependency=afterany:train:sweep
#SBATCH --mem=1G --ntasks=1 --time=5 --qos=short --nice=100
#SBATCH --comment="weekly report"
#SBATCH --export=NONE # nothing of the shell
#BERTH --image=debian:12
./report.sh "$SLURM_SUBMIT_DIR"
