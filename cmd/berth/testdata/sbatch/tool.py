#!/usr/bin/env python3
#SBATCH -N1 -n1 -c4
#SBATCH --mem=3G --gpus=1
#BERTH --image=python:3.12-slim
"""A script need not be one of a shell."""
import os
print(os.environ["SLURM_JOB_NAME"], os.environ["SLURM_CPUS_PER_TASK"])
