#!/bin/bash -l
#SBATCH --nodes=2
#SBATCH --licenses=matlab:1
#SBATCH --constraint=ib
#SBATCH --exclusive
#SBATCH --gres=nvme:1
#SBATCH --signal=USR1@300
#SBATCH --dependency=singleton
#SBATCH --part=gpu
#SBATCH --frobnicate now
#SBATCH --mem=0
#PBS -l walltime=1
#BERTH --image=debian:12
run=$SLURM_ARRAY_JOB_ID
sbatch next.sh && squeue -u "$USER"
srun -w node7 hostname
srun --multi-prog tasks.conf
mpirun ./solve
