#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --mem=900G
#SBATCH --time=24:00:00
#SBATCH --export=NONE
#BERTH --image=nvcr.io/nvidia/pytorch:24.08-py3
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=1 --label torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
    --node-rank "$SLURM_NODEID" --master-addr "$head" --master-port 29500 train.py
