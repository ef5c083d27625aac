"""Trains 50 steps with a library that is built on torch.distributed; rank 0 prints the losses.

    mpirun -n RANKS python -m mpi4py train.py CLIENT BACKEND
    mpirun -n RANKS python -m mpi4py train.py beside_slow_CLIENT gloo | optimizer

A client is a function below; BACKEND is pypartial or gloo. Models, data and the order of batches
are the same for both, so the losses are. All are small, random, and of float64. The process group
is made first: these libraries refuse a backend that they do not know, but take a group that is
there.

Where the last rank is slow, gloo trains by DistributedDataParallel, and optimizer by
`DistributedOptimizer`. Then rank 0 prints how long its steps took, and whether all models are equal
in the end.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import pypartial as pp
import pypartial.torch

COMM = MPI.COMM_WORLD
STEPS, BATCH, INPUTS, CLASSES = 50, 8, 6, 3
SLOW_S = 0.03  # of a slow rank's batch

os.environ["OMP_NUM_THREADS"] = "1"  # ranks share the cores


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, CLASSES)).double()


def data() -> TensorDataset:
    random = torch.Generator().manual_seed(2)
    x = torch.randn(STEPS * BATCH * COMM.size, INPUTS, generator=random, dtype=torch.float64)
    return TensorDataset(x, x[:, :CLASSES].argmax(1))


def loader() -> DataLoader[Any]:
    sampler = DistributedSampler(data(), COMM.size, COMM.rank, shuffle=False)
    return DataLoader(data(), BATCH, sampler=sampler)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@contextmanager
def folder() -> Iterator[Path]:
    """Give all ranks one folder, for checkpoints."""
    own = tempfile.TemporaryDirectory() if COMM.rank == 0 else None
    yield Path(COMM.bcast(own and own.name))
    COMM.Barrier()
    if own is not None:
        own.cleanup()


def digest(model: nn.Module) -> bytes:
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def is_slow() -> None:
    if COMM.rank == COMM.size - 1:
        time.sleep(SLOW_S)  # its batch takes longer


def accelerate() -> list[float]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, losses = net(), []
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    batches = DataLoader(data(), BATCH)
    model, optimizer, batches, scheduler = accelerator.prepare(model, optimizer, batches, scheduler)
    assert accelerator.num_processes == COMM.size
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        assert accelerator.gather_for_metrics(y).numel() == BATCH * COMM.size
    with folder() as path:
        accelerator.save_state(str(path))
        accelerator.wait_for_everyone()
        accelerator.load_state(str(path))
    return losses


def beside_slow_accelerate(ctx: pp.Context | None) -> tuple[float, nn.Module]:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    accelerator, model = Accelerator(cpu=True), net()
    optimizer = adamw(model)
    if ctx is None:
        model, prepared = accelerator.prepare(model, optimizer)
    else:
        optimizer = pp.torch.DistributedOptimizer(optimizer, ctx, model=model)
        prepared = accelerator.prepare(optimizer)
        accelerator.register_save_state_pre_hook(lambda *_: optimizer.flush())
    batches, scheduler = accelerator.prepare(
        DataLoader(data(), BATCH), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    )
    began = time.perf_counter()
    for x, y in batches:
        is_slow()
        prepared.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        prepared.step()
        scheduler.step()
    took = time.perf_counter() - began
    with folder() as path:
        accelerator.save_state(str(path))
        accelerator.wait_for_everyone()
    if ctx is not None:
        assert isinstance(prepared, AcceleratedOptimizer)
        optimizer.finish()
    return took, model


def trainer() -> list[float]:
    import transformers

    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config).double()
    random = torch.Generator().manual_seed(2)
    tokens = torch.randint(32, (STEPS * BATCH * COMM.size, 16), generator=random)
    texts = [{"input_ids": one, "labels": one} for one in tokens]
    with folder() as path:
        options = transformers.TrainingArguments(
            str(path), max_steps=STEPS, per_device_train_batch_size=BATCH, logging_steps=1,
            use_cpu=True, report_to=[], save_steps=STEPS // 2, disable_tqdm=True,
        )  # fmt: skip
        client = transformers.Trainer(
            model, options, train_dataset=texts, eval_dataset=texts[: 4 * COMM.size]
        )
        client.train()
        found = [one["loss"] for one in client.state.log_history if "loss" in one]
        found.append(client.evaluate()["eval_loss"])
    return found


def lightning() -> list[float]:
    import lightning as pl
    from lightning.pytorch.plugins.environments import MPIEnvironment

    losses = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, number: int) -> Tensor:
            x, y = batch
            scores = self.net(x)
            loss = nn.functional.cross_entropy(scores, y)
            right = (scores.argmax(1) == y).sum()  # of integers
            self.log("right", right, sync_dist=True, on_step=False, on_epoch=True)
            self.log("loss", loss, sync_dist=True, on_step=True, on_epoch=True)
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return adamw(self)

    with folder() as path:
        client = pl.Trainer(
            devices=COMM.size, strategy="ddp", plugins=[MPIEnvironment()], **lightning_options(path)
        )
        client.fit(Module(), DataLoader(data(), BATCH))
        return losses + [float(value) for _, value in sorted(client.callback_metrics.items())]


def lightning_options(path: Path) -> dict[str, Any]:
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return {"accelerator": "cpu", "max_epochs": 1, "default_root_dir": path, **quiet}


def beside_slow_lightning(ctx: pp.Context | None) -> tuple[float, nn.Module]:
    """With the optimizer Lightning sees one process: of several it makes a broadcast a batch."""
    import lightning as pl
    from lightning.pytorch.plugins.environments import MPIEnvironment

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.times = net(), []

        def training_step(self, batch: Any, number: int) -> Tensor:
            self.times.append(time.perf_counter())
            x, y = batch
            is_slow()
            return nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> Any:
            made = adamw(self)
            if ctx is not None:
                made = pp.torch.DistributedOptimizer(made, ctx, model=self)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.999)
            return [made], [{"scheduler": scheduler, "interval": "step"}]

    module = Module()
    with folder() as path:
        if ctx is None:
            ranks = {"devices": COMM.size, "strategy": "ddp", "plugins": [MPIEnvironment()]}
            options = {**lightning_options(path), **ranks}
        else:
            options = {**lightning_options(path / str(COMM.rank)), "devices": 1}
        client = pl.Trainer(**options)
        client.fit(module, loader())
        saved = torch.load(client.checkpoint_callback.best_model_path, weights_only=True)
        assert saved["global_step"] == STEPS
        if ctx is not None:  # Lightning has flushed before
            weights = [tensor.numpy().tobytes() for tensor in saved["state_dict"].values()]
            assert len(set(COMM.allgather(b"".join(weights)))) == 1
            (optimizer,) = client.optimizers
            assert saved["optimizer_states"][0]["worker"]["rounds"] == optimizer.rounds
            optimizer.finish()
    return module.times[-1] - module.times[0], module


def ignite() -> list[float]:
    import ignite.distributed as idist
    from ignite.engine import Engine, Events
    from ignite.metrics import Accuracy, Average

    # idist.auto_model() wraps a model by itself only with backends whose names it knows.
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = idist.auto_optim(adamw(model))
    losses = []

    def update(engine: Engine, batch: Any) -> dict[str, Tensor]:
        x, y = batch
        optimizer.zero_grad()
        scores = model(x)
        loss = nn.functional.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return {"y_pred": scores.detach(), "y": y, "loss": loss.detach()}

    engine = Engine(update)
    Accuracy(output_transform=lambda out: (out["y_pred"], out["y"])).attach(engine, "accuracy")
    Average(output_transform=lambda out: out["loss"]).attach(engine, "mean")
    assert idist.get_world_size() == COMM.size

    @engine.on(Events.COMPLETED)
    def end() -> None:
        losses.extend([engine.state.metrics["accuracy"], float(engine.state.metrics["mean"])])

    engine.run(idist.auto_dataloader(data(), batch_size=BATCH * COMM.size, shuffle=False))
    return losses


def fsdp2() -> list[float]:
    """A state that only rank 0 has, and a checkpoint that is written while training goes on."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as states
    from torch.distributed.fsdp import fully_shard

    model = net()
    known = model.state_dict() if COMM.rank == 0 else {}
    known = {name: tensor.clone() + 0.5 for name, tensor in known.items()}
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (COMM.size,)))
    options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    states.set_model_state_dict(model, known, options=options)
    optimizer, losses, group = adamw(model), [], dist.new_group()  # a thread uses it meanwhile
    with folder() as path:
        for step, (x, y) in enumerate(loader()):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step == STEPS // 2:
                parts = states.get_state_dict(model, optimizer)
                saved = dict(zip(("model", "optimizer"), parts, strict=True))
                saving = dcp.async_save(saved, checkpoint_id=path, process_group=group)
        saving.result()
        dcp.load(saved, checkpoint_id=path)
        states.set_state_dict(
            model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
        )
        x, y = next(iter(loader()))
        losses.append(nn.functional.cross_entropy(model(x), y).item())
    return losses


def compiled() -> list[float]:
    model = torch.compile(nn.parallel.DistributedDataParallel(net()))
    optimizer, losses = adamw(model), []
    for x, y in loader():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    client, backend = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo" if backend == "gloo" else "pypartial", init_method="mpi://")
    if client.startswith("beside_slow"):
        with pp.Context(COMM) if backend == "optimizer" else nullcontext() as ctx:
            took, model = globals()[client](ctx)
        are_equal = len(set(COMM.allgather(digest(model)))) == 1
        told = {"seconds": took, "are_equal": are_equal}
    else:
        told = {"losses": globals()[client]()}
    dist.barrier()
    dist.destroy_process_group()
    if COMM.rank == 0:
        print("told", json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
