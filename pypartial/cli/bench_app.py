"""The command line of ``pypartial bench``: options, read on rank 0 only."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from ..bench.gossip_options import BenchGossipOptions, GossipWay
from ..bench.group_options import (
    Backend,
    BenchGroupsOptions,
    GroupGenerator,
    Part,
    parse_group_size,
)
from ..bench.options import (
    AnyBuffers,
    Buffers,
    DevicePath,
    DType,
    LatencyOptions,
    OverheadOptions,
    SkewOptions,
    Transport,
    Way,
    Work,
    parse_buffers,
    parse_way,
)
from ..bench.torch_options import BenchTorchOptions, TorchPart, TorchWay, parameter_bytes
from ..policy import Policy
from ..sim.arrivals import MODELS_HELP
from ..units import parse_duration, parse_patience, parse_size
from .options import (
    LISTED,
    PATIENCE_HELP,
    POLICY_HELP,
    REPEATABLE,
    SIZE_HELP,
    JsonOption,
    count,
    duration,
    file,
)
from .reading import files_complaint, listed, read, read_sizes, refuse, trace_into

AnyEnum = TypeVar("AnyEnum", bound=Enum)

_SKEW_POLICIES = ("solo", "majority", "full", "mpi")
_SKEW_SIZES = ("64", "64K", "1M")
_LATENCY_POLICIES = ("full", "solo")
_GROUP_BYTES = ("8", "64K", "1M", "4M")
_GROUP_SIZES = ("2", "4")
_GROUP_GENERATORS = ("static", "random", "smart", "controller")
_HIDDEN = (256, 1024)
_TORCH_POLICIES = ("full", "majority")
_TORCH_WAYS = tuple(way for way in TorchWay if way is not TorchWay.GLOO)
_LATENCY_SIZES = ("8", "64", "512", "4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M")

bench = typer.Typer(
    help="Measure allreduces, groups, gossip, training and calls on this machine.",
    no_args_is_help=True,
)

# ---- options that several commands have ----------------------------------------------------------


_WorkOption = Annotated[
    Work,
    typer.Option(
        help="How a rank passes the time until its call: it sleeps, or it computes and keeps a "
        "core busy.",
        case_sensitive=False,
    ),
]
_TransportOption = Annotated[
    Transport,
    typer.Option(
        help="How ranks exchange data. auto: ranks of a node share memory, and messages go between "
        "nodes. mpi: all ranks exchange messages, also on one node.",
        case_sensitive=False,
    ),
]
_DTypeOption = Annotated[
    DType, typer.Option(help="Element type of the buffers.", case_sensitive=False)
]
_SeedOption = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Seed of the draws of majority and first:M, up to 2**64 - 1."
    ),
]
_PatienceOption = Annotated[str, duration(help=PATIENCE_HELP)]
_CallsOption = Annotated[
    int | None, count(help="Calls in each block. Default: as many as the budget allows.")
]
_BuffersOption = Annotated[
    list[Buffers] | None,
    typer.Option(
        metavar="library|numpy",
        help="Where the buffers of this library's calls come from: library is Context.alloc, numpy "
        f"is numpy.empty. {REPEATABLE} Default: both.",
        case_sensitive=False,
    ),
]
_ON_DEVICE_HELP = (
    "cupy and torch are arrays in the memory of a CUDA device, beside which MPI_Allreduce is "
    "measured between copies by hand to and from pinned memory; cuda-staged-by-hand is that one "
    "alone."
)
_DeviceOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="CUDA device of all ranks, for buffers on a device. Default: the ranks of a node take "
        "its devices in turn.",
    ),
]
_DevicePathOption = Annotated[
    DevicePath | None,
    typer.Option(
        metavar="auto|staged|ipc|direct",
        help="How elements of the policies' buffers on devices travel. staged: by memory of the "
        "host. ipc: by memory of devices that the ranks of a node share. direct: by an MPI that "
        "takes addresses of devices. Default: auto.",
        case_sensitive=False,
    ),
]
_PlotOption = Annotated[
    Path | None,
    file(help="Plot latency against size and write the picture to this file (.png, .pdf or .svg)."),
]

_HIDDEN_TEXT = " and ".join(
    f"{n} ({parameter_bytes(n) / 1e6:.1f} MB of parameters)" for n in _HIDDEN
)

# ---- commands ------------------------------------------------------------------------------------


@bench.callback()
def traced(
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Trace the contexts of the command that follows, for pypartial trace.",
        ),
    ] = None,
) -> None:
    """Read the option in front of a benchmark."""
    if trace:
        trace_into(trace)


@bench.command()
def skew(
    context: typer.Context,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help=f"{POLICY_HELP} mpi is MPI_Allreduce. {REPEATABLE} "
            f"Default: {', '.join(_SKEW_POLICIES)}.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help=f"{SIZE_HELP} {LISTED} Default: {','.join(_SKEW_SIZES)}.",
        ),
    ] = None,
    skew: Annotated[
        str,
        duration(
            help="How late ranks call: rank r calls r times this late. A time such as 1ms or "
            "500us; 0: all ranks call at once."
        ),
    ] = "1ms",
    rounds: Annotated[int, count(help="Rounds to measure for each size and policy.")] = 200,
    warmup: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Rounds to run before these for each size and policy. Their sums are checked; "
            "their times do not count.",
        ),
    ] = 10,
    work: _WorkOption = Work.SLEEP,
    buffers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Whose buffers: numpy (numpy.empty), library (Context.alloc), cupy, torch or "
            f"cuda-staged-by-hand. {_ON_DEVICE_HELP} {REPEATABLE} Default: numpy.",
        ),
    ] = None,
    device: _DeviceOption = None,
    device_path: _DevicePathOption = None,
    transport: _TransportOption = Transport.AUTO,
    dtype: _DTypeOption = DType.FLOAT32,
    seed: _SeedOption = 0,
    patience: _PatienceOption = "none",
    json: JsonOption = None,
    plot: _PlotOption = None,
) -> None:
    """Measure an allreduce to which ranks come late.

    Start it with mpirun -n P. It is the micro-benchmark of eager-SGD, Fig. 8: in each round there
    is a barrier, then rank r sleeps or computes for r times --skew and calls. The latency of a call
    is compared with MPI_Allreduce's. Every sum is verified; the exit code is 1 if one was wrong.
    """
    options = SkewOptions(
        policies=tuple(read("--policy", _way, text) for text in policy or _SKEW_POLICIES),
        sizes=read_sizes(size, _SKEW_SIZES),
        skew_ns=read("--skew", parse_duration, skew),
        buffers=_kinds(buffers, (Buffers.NUMPY,)),
        device=device,
        device_path=device_path,
        rounds=rounds,
        warmup=warmup,
        work=work,
        transport=transport,
        dtype=dtype,
        seed=seed,
        patience=read("--patience", parse_patience, patience),
        json=json,
        plot=plot,
    )
    refuse(options.complaint(context.obj.ranks) or files_complaint(json, plot))
    context.obj.job = options


@bench.command()
def latency(
    context: typer.Context,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help=f"{POLICY_HELP} {REPEATABLE} Default: {', '.join(_LATENCY_POLICIES)}.",
        ),
    ] = None,
    buffers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Whose buffers the policies have: library (Context.alloc), numpy (numpy.empty), "
            f"cupy, torch or cuda-staged-by-hand. {_ON_DEVICE_HELP} {REPEATABLE} Default: library "
            "and numpy.",
        ),
    ] = None,
    device: _DeviceOption = None,
    device_path: _DevicePathOption = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help=f"{SIZE_HELP} {LISTED} Default: {','.join(_LATENCY_SIZES)}.",
        ),
    ] = None,
    skew: Annotated[
        str,
        duration(
            help="How late ranks call: rank r calls r times this late, after a barrier. A time "
            "such as 1ms or 500us; 0: calls follow each other without a barrier."
        ),
    ] = "0",
    budget: Annotated[
        str,
        duration(
            help="About how long to measure each way to sum at each size; the number of calls "
            "follows from it. A time such as 250ms."
        ),
    ] = "250ms",
    blocks: Annotated[
        int | None,
        count(help="Blocks of calls of each way to sum. Default: 5 to 9, as the budget allows."),
    ] = None,
    calls: _CallsOption = None,
    work: _WorkOption = Work.SLEEP,
    transport: _TransportOption = Transport.AUTO,
    dtype: _DTypeOption = DType.FLOAT32,
    seed: _SeedOption = 0,
    patience: _PatienceOption = "none",
    json: JsonOption = None,
    plot: _PlotOption = None,
) -> None:
    """Measure an allreduce against MPI's own and a memory copy.

    Start it with mpirun -n P. The ways to sum are: each policy with each kind of buffers,
    MPI_Allreduce, MPI_Iallreduce with MPI_Wait, and MPI's persistent allreduce; beside them all
    ranks copy a buffer at once. At each size they take turns in blocks of calls. The value of a
    block is the mean time of a call on its slowest rank; results are medians over the blocks.

    On a device there are the policies, MPI_Allreduce staged by hand, and the copy; a call ends when
    the result is on the device.

    Sums are verified: all of a few calls of each way before the blocks, the last one of a block and
    the flush after it, and with --skew every one. The exit code is 1 if one was wrong.
    """
    options = LatencyOptions(
        policies=tuple(read("--policy", parse_way, text) for text in policy or _LATENCY_POLICIES),
        sizes=read_sizes(size, _LATENCY_SIZES),
        buffers=_kinds(buffers, tuple(Buffers)),
        device=device,
        device_path=device_path,
        skew_ns=read("--skew", parse_duration, skew),
        budget_ns=read("--budget", parse_duration, budget),
        blocks=blocks,
        calls=calls,
        work=work,
        transport=transport,
        dtype=dtype,
        seed=seed,
        patience=read("--patience", parse_patience, patience),
        json=json,
        plot=plot,
    )
    refuse(options.complaint(context.obj.ranks) or files_complaint(json, plot))
    context.obj.job = options


@bench.command(epilog="\b\nArrivals:\n" + MODELS_HELP)
def groups(
    context: typer.Context,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            metavar="latency|iterations",
            help="What to measure: how long an average takes, or how long iterations take beside "
            f"slow ranks. {REPEATABLE} Default: both.",
            case_sensitive=False,
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help=f"{SIZE_HELP} {LISTED} Iterations have the first one. "
            f"Default: {','.join(_GROUP_BYTES)}.",
        ),
    ] = None,
    group_size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RANKS",
            help=f"Ranks of a group, from 2. {LISTED} Default: those of "
            f"{','.join(_GROUP_SIZES)} that there are ranks for.",
        ),
    ] = None,
    generator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GENERATOR",
            help="Which groups: given (each Start names its group), static (a fixed table; "
            "iterations have that of Ripples), random, smart, controller; or full, an allreduce of "
            "this library on a context of the group's ranks (iterations always have full). "
            f"{LISTED} Default: {','.join(_GROUP_GENERATORS)}.",
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BACKEND",
            help="How members add up their models: node (in shared memory), schedule (by "
            "messages), comm (on communicators of MPI), or auto (node, or else schedule). "
            f"{LISTED} Default: auto.",
        ),
    ] = None,
    buffers: Annotated[
        list[Buffers] | None,
        typer.Option(
            metavar="library|numpy",
            help="Where the buffers of this library's requests come from: library is "
            f"Context.alloc, numpy is numpy.zeros. {REPEATABLE} Default: library.",
            case_sensitive=False,
        ),
    ] = None,
    budget: Annotated[
        str,
        duration(
            help="Of latency: about how long to measure each way in each case; the number of "
            "calls follows from it. A time such as 250ms."
        ),
    ] = "250ms",
    blocks: Annotated[
        int | None,
        count(help="Blocks of calls of each way. Default: 5 to 9, as the budget allows."),
    ] = None,
    calls: _CallsOption = None,
    arrivals: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Of iterations: how long ranks sleep before each Start; one of the models listed "
            "below. With a slow rank, each generator also runs with that rank at normal speed.",
        ),
    ] = "slow:0:6x",
    base: Annotated[
        str,
        duration(
            help="Of iterations: mean time that a rank sleeps in the models slow, random and "
            "rotating."
        ),
    ] = "10ms",
    iterations: Annotated[
        int,
        typer.Option(
            min=1,
            max=1_000_000,
            metavar="N",
            help="Of iterations: a run lasts N times as long as --base. It should be many times as "
            "long as an iteration of a slow rank, because nobody waits for that one at first.",
        ),
    ] = 60,
    runs: Annotated[int, count(help="Of iterations: runs of each generator.")] = 5,
    transport: _TransportOption = Transport.AUTO,
    dtype: Annotated[
        DType,
        typer.Option(
            metavar="float32|float64", help="Element type of the buffers.", case_sensitive=False
        ),
    ] = DType.FLOAT32,
    seed: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Seed of generators and arrivals, up to 2**64 - 1."),
    ] = 0,
    json: JsonOption = None,
    plot: _PlotOption = None,
) -> None:
    """Measure averages in groups against MPI's own.

    Start it with mpirun -n P. It also measures iterations beside a slow rank. Latency: the first
    ranks are one group while the others sleep, or groups of all ranks run at once. In each case the
    generators take turns in blocks of calls with MPI_Allreduce and a division, on a communicator
    that is kept, and on one that each call makes by MPI_Comm_create_group or MPI_Comm_split. The
    value of a block is the mean time of a call on its slowest rank; results are medians over the
    blocks.

    Iterations: every rank sleeps, calls Start and Wait, and begins anew; full is an allreduce of
    all ranks. Results are medians over the runs.

    The average of every call is verified in a few calls of each way, and of every block and run
    that it keeps the mean over the ranks; the exit code is 1 if one was wrong.
    """
    chosen = tuple(read("--group-size", parse_group_size, text) for text in listed(group_size))
    defaults = tuple(int(number) for number in _GROUP_SIZES if int(number) <= context.obj.ranks)
    names = listed(generator) or _GROUP_GENERATORS
    backends = listed(backend) or ("auto",)
    options = BenchGroupsOptions(
        parts=tuple(part or Part),
        sizes=read_sizes(size, _GROUP_BYTES),
        group_sizes=chosen or defaults,
        generators=tuple(_member("--generator", GroupGenerator, text) for text in names),
        backends=tuple(_member("--backend", Backend, text) for text in backends),
        buffers=tuple(buffers or (Buffers.LIBRARY,)),
        budget_ns=read("--budget", parse_duration, budget),
        blocks=blocks,
        calls=calls,
        arrivals=arrivals.strip(),
        base_ns=read("--base", parse_duration, base),
        iterations=iterations,
        runs=runs,
        transport=transport,
        dtype=dtype,
        seed=seed,
        json=json,
        plot=plot,
    )
    refuse(options.complaint(context.obj.ranks) or files_complaint(json, plot))
    context.obj.job = options


@bench.command()
def gossip(
    context: typer.Context,
    size: Annotated[list[str] | None, typer.Option(help=f"{SIZE_HELP} {LISTED}")] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(
            help="What to measure beside MPI's own: ad-psgd, ad-psgd-active (one side of a "
            "bipartite topology asks for averages), d-psgd, hop, preduce (groups of 2, drawn) or "
            f"full (an allreduce). {LISTED} Default: all but ad-psgd-active.",
        ),
    ] = None,
    topology: Annotated[str, typer.Option(help="Which ranks are neighbours.")] = "ring",
    buffers: _BuffersOption = None,
    budget: Annotated[str, duration(help="About how long to measure each way.")] = "250ms",
    blocks: Annotated[int | None, count(help="Blocks of calls of each way.")] = None,
    calls: _CallsOption = None,
    transport: _TransportOption = Transport.AUTO,
    dtype: _DTypeOption = DType.FLOAT32,
    json: JsonOption = None,
    plot: _PlotOption = None,
) -> None:
    """Measure averages with neighbours against MPI's own.

    Start it with mpirun -n P. All ways take turns in blocks of iterations (Start and Wait), with
    MPI_Allreduce and a division, with MPI_Sendrecv to one neighbour and an addition, and with
    MPI_Neighbor_allgather and an average in NumPy. The value of a block is the mean time of an
    iteration on the slowest rank; results are medians over the blocks.

    After each block all models are checked; the exit code is 1 if one was wrong.
    """
    names = listed(way) or [one.value for one in GossipWay if one is not GossipWay.ACTIVE]
    options = BenchGossipOptions(
        sizes=read_sizes(size, _GROUP_BYTES),
        ways=tuple(_member("--way", GossipWay, text) for text in names),
        topology=topology,
        buffers=tuple(buffers or Buffers),
        budget_ns=read("--budget", parse_duration, budget),
        blocks=blocks,
        calls=calls,
        transport=transport,
        dtype=dtype,
        json=json,
        plot=plot,
    )
    refuse(options.complaint(context.obj.ranks) or files_complaint(json, plot))
    context.obj.job = options


@bench.command()
def torch(
    context: typer.Context,
    part: Annotated[
        list[TorchPart] | None,
        typer.Option(
            metavar="balanced|late",
            help="What to measure: steps of equally fast ranks, or steps beside a late rank. "
            f"{REPEATABLE} Default: both.",
            case_sensitive=False,
        ),
    ] = None,
    hidden: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=1 << 15,
            metavar="N",
            help="Width of the network's three hidden layers. The late part has the first one. "
            f"{REPEATABLE} Default: {_HIDDEN_TEXT}.",
        ),
    ] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WAY",
            help="What averages the gradients: optimizer (DistributedOptimizer), hook (the "
            "communication hook of DistributedDataParallel) or backend (DistributedDataParallel on "
            f"this library's backend). {LISTED} Default: {','.join(map(str, _TORCH_WAYS))}.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help=f"Of optimizer and hook. {POLICY_HELP} {REPEATABLE} "
            f"Default: {', '.join(_TORCH_POLICIES)}.",
        ),
    ] = None,
    batch: Annotated[int, count(help="Samples of a rank in a step.")] = 32,
    budget: Annotated[
        str,
        duration(
            help="About how long to measure each way in each case; the number of steps follows "
            "from it. A time such as 3s."
        ),
    ] = "3s",
    blocks: Annotated[
        int | None,
        count(help="Blocks of steps of each way. Default: 5 to 9, as the budget allows."),
    ] = None,
    steps: Annotated[
        int | None, count(help="Steps in each block. Default: as many as the budget allows.")
    ] = None,
    base: Annotated[
        str,
        duration(
            help="Of late: how long computing takes at least in a step. Ranks sleep for what is "
            "left of it after the forward pass."
        ),
    ] = "5ms",
    late: Annotated[str, duration(help="Of late: how much longer on the last rank.")] = "30ms",
    transport: _TransportOption = Transport.AUTO,
    seed: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Seed of weights, data and draws, up to 2**64 - 1."),
    ] = 0,
    json: JsonOption = None,
    plot: _PlotOption = None,
) -> None:
    """Measure a training step against PyTorch's on gloo.

    Start it with mpirun -n P. It needs PyTorch, whose DistributedDataParallel it compares. All ways
    train the same network of four layers from the same weights, and take turns in blocks of steps:
    forward, backward, average, update. The value of a block is the mean time of a step on the
    slowest rank; results are medians over the blocks, and ratios are those of blocks that followed
    each other.

    With a late rank, the value of a block is the mean over the other ranks.

    At the end all ranks must have the same weights; those of gloo, but for rounding, where a round
    waits for all ranks; and the loss must have become smaller. The exit code is 1 otherwise.
    """
    ways = listed(way) or [str(one) for one in _TORCH_WAYS]
    options = BenchTorchOptions(
        parts=tuple(part or TorchPart),
        hidden=tuple(hidden or _HIDDEN),
        ways=tuple(_member("--way", TorchWay, text) for text in ways),
        policies=tuple(read("--policy", Policy.parse, text) for text in policy or _TORCH_POLICIES),
        batch=batch,
        budget_ns=read("--budget", parse_duration, budget),
        blocks=blocks,
        steps=steps,
        base_ns=read("--base", parse_duration, base),
        late_ns=read("--late", parse_duration, late),
        transport=transport,
        seed=seed,
        json=json,
        plot=plot,
    )
    refuse(options.complaint(context.obj.ranks) or files_complaint(json, plot))
    context.obj.job = options


@bench.command()
def overhead(
    context: typer.Context,
    policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="Policy of the request: solo, majority, first:1, quorum:1 or full. On one rank "
            "each of them completes at once.",
        ),
    ] = "full",
    buffers: _BuffersOption = None,
    size: Annotated[str, typer.Option(metavar="SIZE", help=SIZE_HELP)] = "8",
    loops: Annotated[int, count(help="Loops to time for each kind of call.")] = 101,
    calls: Annotated[int, count(help="Calls in each loop.")] = 200,
    json: JsonOption = None,
) -> None:
    """Measure what Start, Wait and Test cost from Python.

    It needs one rank and no mpirun; under mpirun, rank 0 measures while the others sleep. The calls
    are compared with mpi4py's Allreduce and its persistent Start and Wait on MPI_COMM_SELF. Short
    loops of every kind of call take turns; results are medians over the loops.

    Start+Wait and Allreduce are timed loop by loop. For Start, Wait and Test alone the clock is
    read before, between and after the two calls of a pair (Start and Wait, Start and Test). The
    time of a reading itself, measured in the same run with nothing in between, is subtracted. The
    last sum of every loop is verified; the exit code is 1 if one was wrong.
    """
    options = OverheadOptions(
        policy=read("--policy", Policy.parse, policy),
        buffers=tuple(buffers or Buffers),
        size=read("--size", parse_size, size),
        loops=loops,
        calls=calls,
        json=json,
    )
    refuse(options.complaint() or files_complaint(json, None))
    context.obj.job = options


def _kinds(values: list[str] | None, host: tuple[Buffers, ...]) -> tuple[AnyBuffers, ...]:
    """Return the kinds of buffers that --buffers names; `host` is what "host" stands for."""
    texts = values or ("host",)
    return tuple(
        kind
        for text in texts
        for kind in read("--buffers", lambda name: parse_buffers(name, host), text)
    )


def _way(text: str) -> Way:
    """Return the policy that a text names, or mpi; an error names mpi, too."""
    try:
        return parse_way(text)
    except ValueError as error:
        raise ValueError(str(error).replace("write one of", "write mpi or one of")) from None


def _member(option: str, kind: type[AnyEnum], text: str) -> AnyEnum:
    """Return the member of an enumeration of texts; another text is a usage error."""
    found = next((member for member in kind if member.value == text.lower()), None)
    if found is None:
        known = ", ".join(str(member.value) for member in kind)
        raise typer.BadParameter(f"{text!r} is not one of {known}", param_hint=f"'{option}'")
    return found
