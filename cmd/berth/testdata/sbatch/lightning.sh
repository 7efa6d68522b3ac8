#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --mem-per-gpu=60G
#SBATCH --time=0-12
#SBATCH --export=WANDB_MODE=offline
#BERTH --image=lab/lightning:7
module load cuda/12.4
srun python fit.py
