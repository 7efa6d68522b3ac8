#!/bin/bash

# Options may stand between comments.
#SBATCH --time=10
##SBATCH --time=99999
 #SBATCH --mem=1G
#SBATCH --mem=2G --export=NONE
#SBATCH --time=20
#BERTH --image=debian:12
hostname
#SBATCH --time=30
