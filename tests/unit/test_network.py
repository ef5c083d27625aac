"""Networks of simulated ranks: what is read, what is refused, and what the presets hold."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypartial.sim.network import PRESETS, Link, Network, parse_network

ALL_KEYS = (
    "L=2us,o=500ns,g=300ns,G=0.1ns,S=64K,jitter=50ns,node=16,noise=100ns,reduce=10GB/s,"
    "node.L=300ns,node.o=100ns,node.g=50ns,node.G=25ps,node.S=none,node.jitter=1ns"
)


def test_a_list_gives_every_value() -> None:
    network = parse_network(ALL_KEYS)
    assert network.between == Link(2000, 500, 300, 100, 65536, 50)
    assert network.within == Link(300, 100, 50, 25, None, 1)
    assert (network.node_ranks, network.noise_ns, network.reduce_ps) == (16, 100, 100)
    assert network.name == ALL_KEYS
    assert not network.headers_free


def test_values_that_are_not_given_are_free() -> None:
    network = parse_network("L=1us,o=0")
    assert network == Network("L=1us,o=0", Link(1000, 0, 0, 0, None))
    assert network.inside is network.between


def test_the_order_of_keys_does_not_matter() -> None:
    keys = ALL_KEYS.split(",")
    random.Random(3).shuffle(keys)
    shuffled = parse_network(" , ".join(keys))
    assert dataclasses.replace(shuffled, name=ALL_KEYS) == parse_network(ALL_KEYS)


def test_small_and_large_letters_are_different_keys() -> None:
    link = parse_network("L=1us,o=1us,g=7ns,G=9ns").between
    assert (link.gap_ns, link.byte_ps) == (7, 9000)


def test_inside_a_node_it_is_as_between_nodes_but_for_what_is_given() -> None:
    network = parse_network("L=2us,o=500ns,G=1ns,S=1K,node=4,node.L=300ns")
    assert network.within == dataclasses.replace(network.between, latency_ns=300)
    assert parse_network("L=2us,o=1us,node=4").within is None


def test_rendezvous_is_a_size_or_never_or_always() -> None:
    sizes = [
        parse_network(f"L=1us,o=0,S={text}").between.rendezvous_bytes
        for text in ("none", "0", "1K")
    ]
    assert sizes == [None, 0, 1024]


def test_reductions_may_be_free() -> None:
    assert parse_network("loggopsim,reduce=0").reduce_ps == 0
    assert parse_network("loggopsim,reduce=1TB/s").reduce_ps == 1


# ---- presets -------------------------------------------------------------------------------------


def test_presets_say_where_they_are_from() -> None:
    assert len(PRESETS) >= 3
    assert any(
        network.within is not None and network.node_ranks > 1 for network in PRESETS.values()
    )
    for name, network in PRESETS.items():
        assert network.name == name
        assert network.source
        assert parse_network(name) is network


def test_the_figures_of_the_presets() -> None:
    """As in their sources (see the comments there)."""
    assert PRESETS["loggopsim"].between == Link(2500, 1500, 1000, 6000, 65535)
    assert PRESETS["meiko-cs2"].between == Link(7500, 1700, 13600, 30000, None)
    tukey = PRESETS["infiniband-mvapich"].between
    # The file's half round trip of 2 bytes: o, L, one byte more than the first, o.
    half = 2 * tukey.overhead_ns + tukey.latency_ns + tukey.byte_ps / 1000
    assert half == pytest.approx(10835.693 / 2, abs=2)
    daint = PRESETS["piz-daint-like"]
    assert daint.between.latency_ns == 1020
    assert daint.inside.latency_ns == 250


def test_a_preset_can_be_changed() -> None:
    network = parse_network("piz-daint-like, o=1us , node.L=9ns,node=2")
    preset = PRESETS["piz-daint-like"]
    assert network.between == dataclasses.replace(preset.between, overhead_ns=1000)
    assert preset.within is not None
    assert network.within == dataclasses.replace(preset.within, latency_ns=9)
    assert network.node_ranks == 2
    assert network.name == "piz-daint-like,o=1us,node.L=9ns,node=2"
    assert network.source == f"{preset.source}; changed: o=1us,node.L=9ns,node=2"
    assert parse_network("piz-daint-like,node=1").node_ranks == 1
    assert PRESETS["piz-daint-like"] == preset


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "'' is not a network: write loggopsim"),
        ("Loggopsim", "'Loggopsim' is not a network: write loggopsim"),
        ("L=1us", "lacks o: write L=2us"),
        ("g=1us", "lacks L and o: write L=2us"),
        ("o=1us,loggopsim", r"'loggopsim' in .* is not KEY=VALUE \(a preset comes first\)"),
        ("L=1us,o", "'o' in 'L=1us,o' is not KEY=VALUE: write L=2us"),
        ("loggopsim,", "'' in 'loggopsim,' is not KEY=VALUE"),
        ("L=1us,o=1us,L=2us", "L is given twice"),
        ("l=1us,o=1us", r"'l=1us': there is no key 'l': write L \(upper and lower case differ\)"),
        ("L=1us,o=1us,O=1us", "no key 'O': write o "),
        ("L=1us,o=1us,node.l=1us", "no key 'node.l': write node.L "),
        ("L=1us,o=1us,bandwidth=3", "no key 'bandwidth': write L, o, g, G, S, jitter, node, noise"),
        ("L=1us,o=1us,node.noise=1us", "no key 'node.noise'"),
        ("L=1,o=1us", "'L=1': '1' is not a duration"),
        ("L=-1us,o=1us", "'L=-1us': '-1us' is not a duration"),
        ("L=100ps,o=1us", "'L=100ps': '100ps' is not a duration"),
        ("L=,o=1us", "'L=': '' is not a duration"),
        ("L=6000000000s,o=1us", r"latency_ns=6000000000000000000 is not in 0..2\*\*62 - 1"),
        ("L=1us,o=1us,G=0.1", "'G=0.1': '0.1' is not a duration: write 0, or a number with ps"),
        ("L=1us,o=1us,G=0.2ps", "'0.2ps' is shorter than 1 ps"),
        ("L=1us,o=1us,S=big", "'S=big': 'big' is not a size"),
        ("L=1us,o=1us,node=0", "'node=0': '0' is not a number of ranks: write 1 to 2147483647"),
        ("L=1us,o=1us,node=2147483648", "'2147483648' is not a number of ranks"),
        ("L=1us,o=1us,node=1.5", "'1.5' is not a number of ranks"),
        ("L=1us,o=1us,node=" + "9" * 5000, "is not a number of ranks"),
        ("L=1us,o=1us,reduce=10", "'reduce=10': '10' is not a rate"),
        ("L=1us,o=1us,reduce=3TB/s", "'3TB/s' is not within 1B/s and 1TB/s: write 0"),
        ("L=1us,o=1us,node.L=1ns", "a node has one rank: add node=16"),
        ("piz-daint-like,node=1,node.L=1ns", "a node has one rank: add node=16"),
    ],
)
def test_nonsense_is_named(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_network(text)


@pytest.mark.parametrize("value", [-1, 1 << 62, 1.5, True, "3"])
@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Link)])
def test_a_link_names_what_is_out_of_range(field: str, value: Any) -> None:
    values: dict[str, Any] = dict.fromkeys((f.name for f in dataclasses.fields(Link)), 1)
    with pytest.raises(ValueError, match=f"{field}={value!r} is not "):
        Link(**{**values, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("node_ranks", 0), ("node_ranks", 1 << 31), ("noise_ns", -1), ("reduce_ps", 1 << 62)],
)
def test_a_network_names_what_is_out_of_range(field: str, value: int) -> None:
    values: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=f"{field}={value} is not in "):
        Network("n", Link(0, 0, 0, 0, None), **values)


# ---- descriptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*PRESETS, ALL_KEYS, "L=1us,o=0"])
def test_a_description_is_json_and_complete(text: str) -> None:
    network = parse_network(text)
    described = json.loads(json.dumps(network.describe()))
    assert described == parse_network(text).describe()
    assert list(described) == [field.name for field in dataclasses.fields(Network)]
    links = {name: Link(**described.pop(name)) for name in ("between", "within")}
    assert links["within"] == network.inside
    assert Network(**{**described, **links}) == dataclasses.replace(network, within=network.inside)


@given(
    st.sampled_from(["", *PRESETS]),
    st.dictionaries(
        st.sampled_from(["L", "o", "g", "G", "jitter", "noise", "node.L", "node.G"]),
        st.integers(1, 10**9),
    ),
    st.integers(2, 64),
)
def test_a_name_is_read_back(preset: str, values: dict[str, int], node_ranks: int) -> None:
    if not preset:
        values = {"L": 1, "o": 1, **values}
    parts = [preset] * bool(preset) + [f"{key}={value}ns" for key, value in values.items()]
    network = parse_network(", ".join([*parts, f"node={node_ranks}"]))
    assert parse_network(network.name) == network
    if "L" in values:
        assert network.between.latency_ns == values["L"]
