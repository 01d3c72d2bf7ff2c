#!/bin/bash
# A Horovod script on the nodes of a Slurm job: sbatch samples/cluster/slurm_tl_run.sh samples/train_cnn.py --steps 40
# tl-run finds the nodes in Slurm's variables and starts its ranks with srun.  The folder has to be shared by the nodes.
#SBATCH --job-name=tl-run
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.log
set -euo pipefail
export HOROVOD_TIMELINE="${HOROVOD_TIMELINE:-t.json}"
tl-run python "$@"
tl-analyze "$HOROVOD_TIMELINE"
