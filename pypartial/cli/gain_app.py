"""The command line of ``pypartial sim gain``; read on rank 0 only."""

from __future__ import annotations

from typing import Annotated

import typer

from ..policy import Policy
from ..sim.arrivals import trace_shape
from ..sim.gain_options import GainOptions
from ..sim.generators import GENERATORS_HELP, parse_generator
from ..sim.group_options import GroupsOptions, Weights, plan_complaint
from ..sim.network import parse_network
from ..sim.options import Deliver, SkewOptions
from .gossip_app import sim
from .groups_app import GENERATORS, PerNodeOption, SeedOption
from .options import POLICY_HELP, REPEATABLE, JsonOption
from .reading import files_complaint, read, refuse
from .sim_app import DeliverOption, PlotOption

__all__ = ["sim"]  # with one command more

_RANK_STEPS = 64_000
_FREE = "L=0,o=0"  # the recorded times contain the program's own collective


@sim.command(
    epilog=f"\b\nGenerators:\n{GENERATORS_HELP}\n\n\b\nExample:\n"
    "  pypartial sim gain arrivals.csv --policy majority --plot gain.png"
)
def gain(
    context: typer.Context,
    recording: Annotated[
        str, typer.Argument(metavar="FILE", help="What pp.record has written, or such a file.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help=f"{POLICY_HELP} {REPEATABLE} Default: solo, majority, and a quorum of three "
            "quarters.",
        ),
    ] = None,
    generator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GENERATOR",
            help=f"One of the generators of groups listed below. {REPEATABLE} Default: "
            f"{', '.join(GENERATORS)}, as far as the ranks allow them.",
        ),
    ] = None,
    deliver: DeliverOption = Deliver.LATEST,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Use the first N lines of the file. Default: all, but at most "
            f"{_RANK_STEPS:,} times of ranks, so that it takes seconds.",
        ),
    ] = None,
    seed: SeedOption = 0,
    per_node: PerNodeOption = 4,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Predict what a recorded program would gain.

    Simulates the recorded computation of all ranks under each policy and generator of groups.
    Prints the time of a step, active ranks and staleness beside those of the synchronous program,
    full.
    """
    recorded, ranks = read("FILE", trace_shape, recording)
    steps = steps or max(1, min(recorded, _RANK_STEPS // ranks))
    texts = ["full", *(policy or ("solo", "majority", f"quorum:{max(1, 3 * ranks // 4)}"))]
    policies = [read("--policy", Policy.parse, text) for text in texts]
    plans = [read("--generator", parse_generator, text) for text in generator or GENERATORS]
    if generator is None:
        plans = [plan for plan in plans if plan_complaint(plan, ranks, per_node) is None]
    arrivals = f"trace:{recording}"
    rounds = SkewOptions(
        ranks=(ranks,),
        sizes=(8,),
        policies=tuple(dict.fromkeys(policies)),
        arrivals=arrivals,
        network=parse_network(_FREE),
        steps=steps,
        seed=seed,
        deliver=deliver,
        json=json,
        plot=plot,
    )
    groups = GroupsOptions(
        plans=tuple(plans),
        ranks=ranks,
        iterations=steps,
        arrivals=arrivals,
        seed=seed,
        per_node=per_node,
        weights=Weights.CLOSEST,  # a model's iteration is then that of the newest in it
        json=json,
    )
    options = GainOptions(recording, recorded, rounds, groups)
    refuse(options.complaint() or files_complaint(json, plot))
    context.obj.job = options
