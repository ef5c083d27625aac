"""The command line of ``pypartial sim gossip``; read on rank 0 only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..sim.arrivals import MODELS_HELP
from ..sim.gossip_options import (
    METHODS_HELP,
    ComputationGraph,
    GossipOptions,
    parse_link,
    parse_method,
)
from ..topology import parse
from ..units import parse_duration
from .groups_app import (
    BASE,
    ArrivalsOption,
    BaseOption,
    IterationsOption,
    RanksOption,
    SeedOption,
    log_complaint,
)
from .options import REPEATABLE, JsonOption, duration, file
from .reading import files_complaint, read, refuse
from .sim_app import sim
from .topology_app import TOPOLOGIES_HELP

__all__ = ["sim"]  # with one command more

_METHODS = ("d-psgd", "hop:max_ig=8,backup=1", "hop:max_ig=8,staleness=5", "ad-psgd")


@sim.command(
    name="gossip",
    epilog=f"\b\nMethods:\n{METHODS_HELP}\n\n\b\nTopologies:\n{TOPOLOGIES_HELP}\n\n\b\n"
    f"Arrivals:\n{MODELS_HELP}",
)
def sim_gossip(
    context: typer.Context,
    ranks: RanksOption = 16,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD",
            help=f"One of the methods listed below. {REPEATABLE} Default: {'; '.join(_METHODS)}, "
            "as far as the topology allows them.",
        ),
    ] = None,
    topology: Annotated[
        str, typer.Option(metavar="NAME", help="Which ranks are neighbours: listed below.")
    ] = "ring-based",
    arrivals: ArrivalsOption = "random:6x:p=1/16",
    graph: Annotated[
        ComputationGraph,
        typer.Option(
            help="parallel: a rank computes while its update travels, and then waits; serial: it "
            "computes, sends, and waits.",
            case_sensitive=False,
        ),
    ] = ComputationGraph.PARALLEL,
    message: Annotated[
        str, duration("--message-time", help="How long a model takes from one rank to another.")
    ] = "0",
    link: Annotated[
        list[str] | None,
        typer.Option(
            metavar="R:Kx",
            help=f"All links of rank R take K times as long; R-S:Kx: one link. {REPEATABLE}",
        ),
    ] = None,
    iterations: IterationsOption = 1000,
    seed: SeedOption = 0,
    base: BaseOption = BASE,
    log: Annotated[
        Path | None, file(help="Write to this file which rank does what, and when.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Show what slow ranks and links cost gossip and queues.

    Only the protocols are simulated (AD-PSGD, D-PSGD, Hop): a model takes time on its way,
    requests and tokens take none. Where ranks or links are disturbed, each method also runs
    undisturbed, and x is how many times longer an iteration takes.
    """
    found = read("--topology", parse, topology)
    try:
        on_ranks = read("--topology", lambda _: found.on(ranks), topology)
    except ImportError as error:
        raise typer.BadParameter(str(error)) from None
    default = (it for it in map(parse_method, _METHODS) if it.complaint(on_ranks) is None)
    options = GossipOptions(
        methods=tuple(read("--method", parse_method, text) for text in method or ())
        or tuple(default),
        ranks=ranks,
        iterations=iterations,
        topology=found,
        arrivals=arrivals.strip(),
        links=tuple(read("--link", parse_link, text) for text in link or ()),
        message_ns=read("--message-time", parse_duration, message),
        graph=graph,
        seed=seed,
        base_ns=read("--base", parse_duration, base),
        log=log,
        json=json,
    )
    refuse(options.complaint())
    refuse(files_complaint(json, None) or log_complaint(log, json))
    context.obj.job = options
