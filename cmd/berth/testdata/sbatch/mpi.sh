#!/bin/bash
#SBATCH --ntasks=16
#SBATCH --mem-per-cpu=2G
#SBATCH --time=1:00:00
#SBATCH --tmp=20G
#SBATCH --threads-per-core=1
#SBATCH --export=NONE
#BERTH --image=lab/solver:3
mpirun -np "$SLURM_NTASKS" ./solve mesh.dat
