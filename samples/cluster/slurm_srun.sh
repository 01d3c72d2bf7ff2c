#!/bin/bash
# The same without tl-run: srun starts the ranks, which find each other by Slurm's variables.
#   sbatch samples/cluster/slurm_srun.sh samples/train_cnn.py --steps 40
#SBATCH --job-name=srun
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.log
set -euo pipefail
export HOROVOD_TIMELINE="${HOROVOD_TIMELINE:-t.json}"
TLKIT_JOB_SECRET="$(openssl rand -hex 32)"   # by which ranks on several hosts know each other
export TLKIT_JOB_SECRET
srun python "$@"
tl-analyze "$HOROVOD_TIMELINE"
