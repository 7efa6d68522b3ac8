#!/bin/bash
#SBATCH -J sweep -a 1-9:2%2 -t 30 -c 2
#SBATCH --mem 4000 --export=NONE
#BERTH --image=python:3.12-slim
python sweep.py --seed "$SLURM_ARRAY_TASK_ID" --of "$SLURM_ARRAY_TASK_MAX"
