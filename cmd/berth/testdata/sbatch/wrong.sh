#!/bin/bash
#SBATCH --time=tomorrow
#SBATCH --mem=lots
#SBATCH --ntasks=5 --nodes=2
#SBATCH --gres=gpu:a100:x
#SBATCH --array=9-1
#SBATCH --exclusive=user extra
#SBATCH --cpus-per-task
#SBATCH --requeue=yes
#SBATCH --job-name="open
#SBATCH --export=1X
#BERTH --cpus=4
srun hostname
