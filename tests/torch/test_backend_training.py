"""The backend of torch.distributed: training with DDP and FSDP."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.mpi

STEPS = 200
CLOSE = 1e-9
CLOSE_IN_FLOAT32 = 1e-6


def model(batch_norm: bool = False) -> torch.nn.Module:
    torch.manual_seed(7)
    middle = [torch.nn.BatchNorm1d(16)] if batch_norm else []
    layers = [torch.nn.Linear(8, 16), *middle, torch.nn.Tanh(), torch.nn.Linear(16, 1)]
    return torch.nn.Sequential(*layers).double()


OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}


def batches(rank: int, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(100 + rank)
    made = [torch.randn(4, 8, generator=source, dtype=torch.float64) for _ in range(steps)]
    return [(x, x.sum(1, keepdim=True).sin()) for x in made]


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int) -> None:
    for x, y in batches(rank, steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()


def weights(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.fixture(scope="module")
def gloo_group(world):
    group = dist.new_group(backend="gloo")
    yield group
    dist.destroy_process_group(group)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("broadcast_buffers", [False, True])
def test_ddp_has_the_weights_of_gloo(world, gloo_group, comm, optimizer, broadcast_buffers):
    ends = []
    for group in (world, gloo_group):
        net = model(batch_norm=True)
        ddp = DistributedDataParallel(
            net,
            process_group=group,
            broadcast_buffers=broadcast_buffers,
            bucket_cap_mb=0.0005,
        )
        train(ddp, OPTIMIZERS[optimizer](ddp.parameters()), comm.rank, STEPS)
        ends.append(weights(net))
    start = weights(model(batch_norm=True))
    assert difference(ends[0], ends[1]) < CLOSE
    assert difference(start, ends[1]) > 0.1
    assert all(torch.equal(ends[0], torch.from_numpy(it)) for it in comm.allgather(ends[0].numpy()))


def alone(size: int, steps: int) -> torch.Tensor:
    """The weights of one process that has the batches of all ranks."""
    net = model()
    optimizer = OPTIMIZERS["momentum"](net.parameters())
    for step in zip(*(batches(rank, steps) for rank in range(size)), strict=True):
        optimizer.zero_grad()
        for x, y in step:
            (torch.nn.functional.mse_loss(net(x), y) / size).backward()
        optimizer.step()
    return weights(net)


def test_fsdp1(world, comm):
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    train(net, OPTIMIZERS["momentum"](net.parameters()), comm.rank, 20)
    with FullyShardedDataParallel.summon_full_params(net):
        assert difference(weights(net), alone(comm.size, 20)) < CLOSE


def test_fsdp1_with_mixed_precision_has_the_weights_of_gloo(world, gloo_group, comm):
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    ends = []
    for group in (world, gloo_group):
        net = FullyShardedDataParallel(
            model().float(),
            process_group=group,
            mixed_precision=MixedPrecision(param_dtype=torch.float64),
            device_id=torch.device("cpu"),
        )
        train(net, OPTIMIZERS["momentum"](net.parameters()), comm.rank, 5)
        with FullyShardedDataParallel.summon_full_params(net):
            ends.append(weights(net).clone())
    assert difference(ends[0], ends[1]) < CLOSE_IN_FLOAT32


def test_fsdp2(world, comm):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = model()
    mesh = init_device_mesh("cpu", (comm.size,))
    fully_shard(net[0], mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, OPTIMIZERS["momentum"](net.parameters()), comm.rank, 20)
    whole = torch.cat([it.full_tensor().detach().reshape(-1) for it in net.parameters()])
    assert difference(whole, alone(comm.size, 20)) < CLOSE
