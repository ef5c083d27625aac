#!/usr/bin/env bash
# A Slurm job whose ranks srun starts: sbatch examples/slurm/srun.sh, from the folder of a checkout.
#
# Slurm and MPI must speak the same PMI. "srun --mpi=list" prints what Slurm has. Open MPI 5 needs pmix;
# MPICH and Intel MPI take pmi2. If they do not fit, every rank is alone in its MPI_COMM_WORLD, and
# "pypartial info" says so.
#SBATCH --job-name=pypartial
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out

set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-.}"
export OMP_NUM_THREADS=1

# --kill-on-bad-exit ends the other ranks when one fails. Since Slurm 22.05 srun takes the cores a task
# from --cpus-per-task only if it is told.
srun --mpi="${PP_SRUN_MPI:-pmix}" --kill-on-bad-exit=1 \
    --cpus-per-task="${SLURM_CPUS_PER_TASK:?run it with sbatch}" \
    python -m mpi4py examples/data_parallel.py
