#!/usr/bin/env bash
# A Slurm job whose ranks mpirun starts: sbatch examples/slurm/job.sh, from the folder of a checkout.
#
# Open MPI's mpirun asks Slurm for the nodes and the number of ranks. Each rank has a second core, for
# the library's progress thread and for the threads of NumPy.
#SBATCH --job-name=pypartial
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out

set -euo pipefail

cd "${SLURM_SUBMIT_DIR:-.}"
export OMP_NUM_THREADS=1

# Open MPI binds a rank to one core by default, and the progress thread with it: "--bind-to none". With
# "python -m mpi4py" an exception on one rank ends all of them.
mpirun -n "${SLURM_NTASKS:?run it with sbatch}" --bind-to none \
    python -m mpi4py examples/data_parallel.py
