#!/bin/bash
#SBATCH --job-name=train
#SBATCH --partition=gpu
#SBATCH --account=vision
#SBATCH --gres=gpu:a100:8
#SBATCH --cpus-per-task=64
#SBATCH --mem=480G
#SBATCH --time=2-00:00:00
#SBATCH --output=logs/%x-%j.out
#SBATCH --error=logs/%x-%j.err
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=ada@example.com
#SBATCH --export=NONE
#BERTH --image=pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime
#BERTH --set resources.shm_size=64GiB --secret HF_TOKEN

set -euo pipefail
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
echo "job $SLURM_JOB_ID on $SLURM_NNODES node"
torchrun --standalone --nproc-per-node="$SLURM_GPUS_ON_NODE" train.py "$@"
