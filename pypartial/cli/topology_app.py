"""The command line of ``pypartial topology``; read on rank 0 only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..topology import parse
from . import TopologyOptions
from .options import JsonOption, file
from .reading import files_complaint, read, refuse

_RANKS = 8
_RANKS_MAX = 1024

TOPOLOGIES_HELP = """\
ring                      a circle
ring-based                a circle, and each rank with the most distant one
double-ring               two ring-based graphs, connected rank by rank
exponential               i with i + 1, i + 2, i + 4 and so on;
                          exponential:directed: i only sends to these
bipartite-exponential     i with i + 1, i + 3, i + 5, i + 9 and so on
complete, star, hypercube
torus:ROWSxCOLUMNS        rows and columns are circles, as in torus:4x4
machines:SIZE,SIZE,...    all ranks of a machine, and a circle of their first
                          ranks; bridges instead: machines:4,2,2:0-4,4-6"""

topology = typer.Typer(
    help="Which ranks are neighbours in decentralized training: show a topology.",
    short_help="Show a topology.",
    no_args_is_help=True,
)


@topology.command(
    epilog="\b\nTopologies:\n" + TOPOLOGIES_HELP + "\n\n\b\nExamples:\n"
    "  pypartial topology show ring-based --ranks 8 --plot ring-based.png\n"
    "  pypartial topology show machines:4,2,2:0-4,5-6,1-7"
)
def show(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="NAME", help="One of the topologies below.")],
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="P",
            help=f"Number of ranks, up to {_RANKS_MAX}. Default: that of NAME, else {_RANKS}.",
        ),
    ] = None,
    json: JsonOption = None,
    plot: Annotated[
        Path | None,
        file(help="Draw the graph and write the picture to this file (.png, .pdf or .svg)."),
    ] = None,
) -> None:
    """Print degree, diameter and spectral gaps of a topology.

    The larger the gap, the faster models become equal. Two conventions are usual, and their numbers
    differ: 1 - the second singular value of the weights, and Hop's.
    """
    try:
        chosen = read("NAME", parse, text)
        count = ranks or chosen.ranks or _RANKS
        refuse(f"{count} ranks are more than {_RANKS_MAX}" if count > _RANKS_MAX else None)
        read("--ranks", lambda _: chosen.on(count), text)
    except ImportError as error:
        raise typer.BadParameter(str(error)) from None
    refuse(files_complaint(json, plot))
    context.obj.job = TopologyOptions(chosen, count, json, plot)
