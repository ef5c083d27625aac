"""A network that reads digits, trained beside one slow rank: gossip and queues against rounds.

    mpirun -n 4 python -m mpi4py examples/gossip.py

With `Synchronous` every step averages the gradients of all ranks, so all are as slow as the last
rank, which needs 10 ms longer for a step. With `ADPSGD` a rank makes a step of its own, and
averages its model with one neighbour's, which may compute meanwhile: nobody waits for the slow
rank. It stops when rank 0 has made its steps. With `DPSGD` and `Hop` a rank averages its model with
those of all neighbours: `DPSGD` waits for each of them, and `Hop` takes the slow rank's older
models, and lets it leave steps out. Compare the times, and how many of 1,000 new digits
the networks read right. It needs networkx.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

STEPS = 600
BATCH = 64
RATE, MOMENTUM = 0.2, 0.9
STEP_S, SLOW_S = 0.002, 0.01  # sleeps stand for the work of a device
HIDDEN = 64
FONT = (  # three columns and five rows each, in images of 7 x 5
    "111101101101111 010110010010111 111001111100111 111001111001111 101101111001001 "
    "111100111001111 111100111101111 111001010010010 111101111101111 111101111001111"
)

comm = MPI.COMM_WORLD
is_slow = comm.rank == comm.size - 1 > 0
glyphs = np.array([[*map(float, bits)] for bits in FONT.split()]).reshape(10, 5, 3)
shapes = [(35, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
ends = np.cumsum([np.prod(shape) for shape in shapes])


def draw(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Make images of digits, each at some place and with noise, and what they show."""
    labels = random.integers(10, size=count)
    images = random.normal(scale=0.2, size=(count, 7, 5))
    for image, label in zip(images, labels, strict=True):
        top, left = random.integers(3, size=2)
        image[top : top + 5, left : left + 3] += glyphs[label]
    return images.reshape(count, 35), labels


def layers(vector: np.ndarray) -> list[np.ndarray]:
    """Return weights and biases as views of a vector."""
    parts = np.split(vector, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def scores(model: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hidden layer, and a score of each digit."""
    weights, bias, out_weights, out_bias = layers(model)
    hidden = np.maximum(images @ weights + bias, 0)
    return hidden, hidden @ out_weights + out_bias


def differentiate(
    model: np.ndarray, images: np.ndarray, labels: np.ndarray, out: np.ndarray
) -> None:
    """Write the gradient of the cross entropy to `out`."""
    hidden, wrong = scores(model, images)
    wrong = np.exp(wrong - wrong.max(1, keepdims=True))
    wrong /= wrong.sum(1, keepdims=True)
    wrong[np.arange(len(labels)), labels] -= 1
    wrong /= len(labels)
    back = wrong @ layers(model)[2].T * (hidden > 0)
    found = images.T @ back, back.sum(0), hidden.T @ wrong, wrong.sum(0)
    for part, gradient in zip(layers(out), found, strict=True):
        part[:] = gradient


def train(ctx: pp.Context, method: pp.methods.Method) -> None:
    """Train a network, and print how long it took, and what it has learned."""
    random = np.random.default_rng([1, comm.rank])
    model = ctx.alloc(ends[-1], "f4")
    model[:] = np.random.default_rng(2).normal(scale=0.2, size=model.size)
    velocity = np.zeros_like(model)  # each rank's own
    worker = method.worker(ctx, model)

    def update(gradient: np.ndarray) -> None:
        velocity[:] = MOMENTUM * velocity + gradient
        model[:] -= RATE * velocity

    comm.Barrier()
    began, steps = time.perf_counter(), 0
    while steps < STEPS and not (is_slow and method.averages_models and comm.iprobe(0)):
        time.sleep(STEP_S + SLOW_S * is_slow)
        differentiate(model, *draw(random, BATCH), out=worker.gradient)
        worker.step(worker.gradient, update)
        steps += 1
    if comm.rank == 0 and comm.size > 1:
        comm.send(None, comm.size - 1)
    worker.finish(update)  # here all ranks have the same model
    seconds = time.perf_counter() - began
    if is_slow:
        comm.recv(source=0)

    images, labels = draw(np.random.default_rng(3), 1000)
    right = np.mean(scores(model, images)[1].argmax(1) == labels)
    spread = max(abs(other - model).max() for other in comm.allgather(model))
    every = comm.gather(steps)
    if every is not None:
        print(f"{type(method).__name__}: {seconds:.2f} s, {right:.1%} right; rank 0 made ", end="")
        print(f"{every[0]} steps, the slow rank {every[-1]}; the models differ by {spread} at most")


if __name__ == "__main__":
    with pp.Context(comm, seed=7) as ctx:
        train(ctx, pp.methods.Synchronous())
        train(ctx, pp.methods.ADPSGD("complete"))
        train(ctx, pp.methods.DPSGD("complete"))
        train(ctx, pp.methods.Hop("complete", max_ig=8, staleness=4, skip=8))
