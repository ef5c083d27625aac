"""Schedules: what the dump says is parsed, checked and executed here, in every order.

The model executes the schedules of all ranks with the meaning that csrc/graph/graph.h gives to the
operations. It is as unkind as the engine and MPI may be: a message arrives when it likes, a send
that was not buffered reads the vector until it finishes, which it does when it likes. The value of
an element is the tuple of the ranks in it, from left to right.
"""

import random
import re
import subprocess
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.c_cases import SANITIZED, compiled

from pypartial._core import ffi, lib
from pypartial._names import algorithms

ALGORITHMS = {name: algorithms(ffi, lib).constant(lib, name) for name in algorithms(ffi, lib)}
RECURSIVE_DOUBLING = ALGORITHMS["recursive_doubling"]
RABENSEIFNER, RING = ALGORITHMS["rabenseifner"], ALGORITHMS["ring"]
SIZES = [*range(1, 18), 32, 33]
LONG = {10, 11, 13, 14, 15, 32}

by_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
by_size = pytest.mark.parametrize(
    "size", [pytest.param(n, marks=[pytest.mark.long] if n in LONG else []) for n in SIZES]
)


def counts_for(size):
    """Few elements and many: the last are cut into 4 segments by each algorithm."""
    return sorted({0, 1, 3, size - 1, 1000, size * 2**19 + 3})


def segments_of(algorithm, size, count):
    """How often a mebibyte, or one a rank, goes into so many float64, but not more than 4 times."""
    if size == 1:
        return 1
    pieces = 8 * count // 2**20
    return max(1, min(4, pieces // size if algorithm == RING else pieces))


def dimensions(size):
    return (size - 1).bit_length()


# ---- the library -------------------------------------------------------------------------------


def dump(algorithm, size, count, element=lib.PP_FLOAT64, form=lib.PP_GOAL):
    text = ffi.new("char **")
    status = lib.pp_schedule_dump(algorithm, size, count, element, form, text)
    if status < 0:
        assert text[0] == ffi.NULL
        raise ValueError(status, ffi.string(lib.pp_error_text()).decode())
    try:
        return ffi.string(text[0]).decode()
    finally:
        lib.pp_text_free(text[0])


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    """Runs tests/unit/c/graph_cases.c, which sees the internals, under the sanitizers."""
    parts = [f"{room}/*.c" for room in ("base", "graph", "algo", "reduce")]
    folder = tmp_path_factory.mktemp("cases")
    program = compiled(folder, "graph_cases", parts, *SANITIZED, "-lm")

    def run(*arguments):
        return subprocess.run(
            [program, *map(str, arguments)],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            timeout=60,
        ).stdout

    return run


# ---- parsing -----------------------------------------------------------------------------------


@dataclass
class Operation:
    kind: str
    label: str | None = None
    peer: int | None = None
    tag: int | None = None
    activation: bool = False
    reg: int | None = None
    lo: int | None = None
    hi: int | None = None
    place: bool = False
    lane: int = 0
    source: int | None = None
    incoming_left: bool = False
    need: int = 0
    ins: list[int] = field(default_factory=list)
    outs: list[int] = field(default_factory=list)


@dataclass
class Schedule:
    rank: int
    count: int
    registers: int
    scratch: int
    tags: int
    operations: list[Operation] = field(default_factory=list)

    def find(self, kind, **wanted):
        return [
            i
            for i, op in enumerate(self.operations)
            if op.kind == kind and all(getattr(op, key) == value for key, value in wanted.items())
        ]

    @cached_property
    def receives(self):
        """By sender and tag."""
        places = self.find("recv")
        found = {(self.operations[i].peer, self.operations[i].tag): i for i in places}
        assert len(found) == len(places)
        return found

    def labelled(self, label):
        (found,) = (i for i, op in enumerate(self.operations) if op.label == label)
        return found


HEAD = re.compile(r"// (\d+) elements of (\d+)b, registers (\d+), scratch (\d+), tags (\d+)")
OPERATION = re.compile(
    r"l(?P<index>\d+): (?P<kind>nop|send|recv|reduce|copy)(?: (?P<bytes>\d+)b)?"
    r"(?: (?:to|from) (?P<peer>\d+) tag (?P<tag>\d+))?(?: of l(?P<source>\d+))?"
    r"(?P<activation> activation)?(?: reg (?P<reg>\d+) \[(?P<lo>\d+),(?P<hi>\d+)\))?"
    r"(?P<land> in place| into scratch)?(?: lane (?P<lane>\d+))?"
    r'(?: incoming (?P<side>left|right))?(?: "(?P<label>\w+)")?'
)
REQUIRES = re.compile(r"l(\d+) requires (?:(any|\d+) of )?(l\d+(?:, l\d+)*)")


def parse_operation(line, index, element_bytes):
    match = OPERATION.fullmatch(line)
    assert match and int(match["index"]) == index, line
    number = {
        key: None if match[key] is None else int(match[key])
        for key in ("bytes", "peer", "tag", "source", "reg", "lo", "hi")
    }
    assert (match["land"] is not None) == (match["kind"] == "recv" and not match["activation"])
    length = number.pop("bytes")
    if number["lo"] is not None:
        assert length == (number["hi"] - number["lo"]) * element_bytes
    return Operation(
        kind=match["kind"],
        label=match["label"],
        place=match["land"] == " in place",
        lane=int(match["lane"] or 0),
        activation=bool(match["activation"]),
        incoming_left=match["side"] == "left",
        **number,
    )


def add_requirements(line, operations):
    match = REQUIRES.fullmatch(line)
    assert match, line
    op = operations[int(match[1])]
    op.ins = [int(name[1:]) for name in match[3].split(", ")]
    op.need = {"any": 1, None: len(op.ins)}.get(match[2]) or int(match[2])
    for before in op.ins:
        operations[before].outs.append(int(match[1]))


def parse(text):
    first, rest = text.split("\n", 1)
    schedules = []
    for block in re.findall(r"rank \d+ of \d+ \{\n.*?\n\}\n", rest, re.DOTALL):
        title, head, *lines = [line.strip() for line in block.split("\n")[:-2]]
        rank, size = map(int, re.fullmatch(r"rank (\d+) of (\d+) \{", title).groups())
        assert first == f"num_ranks {size}"
        assert rank == len(schedules)
        count, element_bytes, *numbers = map(int, HEAD.fullmatch(head).groups())
        schedule = Schedule(rank, count, *numbers)
        for line in lines:
            if "requires" in line:
                add_requirements(line, schedule.operations)
            else:
                index = len(schedule.operations)
                schedule.operations.append(parse_operation(line, index, element_bytes))
        schedules.append(schedule)
    assert first == f"num_ranks {len(schedules)}"
    assert rest.count("\n") == sum(
        3 + len(s.operations) + sum(1 for op in s.operations if op.ins) for s in schedules
    )
    return schedules


@lru_cache(maxsize=128)
def schedules_of(algorithm, size, count):
    return parse(dump(algorithm, size, count))


# ---- what must hold in any order: happens-before -----------------------------------------------


def ancestors(schedule):
    """For each operation the set (as bits) of those that have finished when it fires."""
    ops = schedule.operations
    known, missing = [0] * len(ops), [len(op.ins) for op in ops]
    queue = deque(i for i, op in enumerate(ops) if not op.ins)
    while queue:
        i = queue.popleft()
        behind = [known[before] | 1 << before for before in ops[i].ins]
        if behind and ops[i].need == len(behind):
            for bits in behind:
                known[i] |= bits
        elif behind:  # some of them: only what is behind each
            known[i] = behind[0]
            for bits in behind[1:]:
                known[i] &= bits
        for out in ops[i].outs:
            missing[out] -= 1
            if missing[out] == 0:
                queue.append(out)
    assert not any(missing), "a cycle"
    return known


def overlap(a, b):
    return max(a.lo, b.lo) < min(a.hi, b.hi)


def check_order(schedule):
    """No race, whatever the order: on the vector, on a register, on scratch."""
    ops, known = schedule.operations, ancestors(schedule)

    def ordered(a, b):
        return known[b] >> a & 1 or known[a] >> b & 1

    take, done = schedule.labelled("take"), schedule.labelled("done")
    sends, reduces = schedule.find("send", activation=False), schedule.find("reduce")
    placed = schedule.find("recv", place=True)
    for i in [*sends, *reduces, *placed]:
        assert known[i] >> take & 1, f"l{i} does not wait for the contribution"
        assert known[done] >> i & 1, f"done does not wait for l{i}"
    for i in [*reduces, *placed]:
        for other in [*sends, *reduces, *placed]:
            if other != i and overlap(ops[i], ops[other]):
                assert ordered(i, other), f"{schedule.rank}: l{i} and l{other} race for data"
    for i in reduces:
        assert known[i] >> ops[i].source & 1
        for other in [*sends, *reduces, *placed]:
            if other != i and ops[i].reg == ops[other].reg:
                assert ordered(i, other), f"{schedule.rank}: l{i} and l{other} race for a header"
    fills = {ops[i].source: i for i in reduces}
    assert sorted(fills) == schedule.find("recv", place=False, activation=False)
    for lane in {ops[i].lane for i in fills}:
        users = sorted((i, reduced) for i, reduced in fills.items() if ops[i].lane == lane)
        for (first, reduced), (second, _) in pairwise(users):
            assert known[second] >> reduced & 1, f"l{first} and l{second} race for scratch"
    lengths = [ops[i].hi - ops[i].lo for i in fills]
    assert schedule.scratch == max(lengths, default=0)


@by_algorithm
@by_size
def test_no_race_in_any_order(algorithm, size):
    for count in counts_for(size):
        for schedule in schedules_of(algorithm, size, count):
            check_order(schedule)


@by_algorithm
@by_size
def test_messages_match_and_their_number_is_known(algorithm, size):
    for count in counts_for(size):
        schedules = schedules_of(algorithm, size, count)
        sent, received = Counter(), Counter()
        for schedule in schedules:
            ops = schedule.operations
            for i in schedule.find("send"):
                sent[schedule.rank, ops[i].peer, ops[i].tag] += 1
            for i in schedule.find("recv"):
                received[ops[i].peer, schedule.rank, ops[i].tag] += 1
        assert sent == received
        assert max(sent.values(), default=1) == 1
        power = 1 << size.bit_length() - 1
        surplus, steps = size - power, power.bit_length() - 1
        expected = {
            RECURSIVE_DOUBLING: power * steps + 2 * surplus,
            RABENSEIFNER: 2 * power * steps + 2 * surplus,
            RING: 2 * size * (size - 1),
        }
        segments = segments_of(algorithm, size, count)
        assert sent.total() == expected[algorithm] * segments + size * dimensions(size)
        # Tags are dense, and a round takes the same share of the tag space everywhere.
        assert {tag for _, _, tag in sent} == set(range(schedules[0].tags))
        assert len({schedule.tags for schedule in schedules}) == 1
        registers = size if algorithm == RING else 1
        assert {schedule.registers for schedule in schedules} == {registers * segments}


@by_size
def test_bytes_of_the_large_vector_algorithms(size):
    """Each rank sends about twice the vector, but for the fold of P that is no power of two."""
    for algorithm, fold in ((RABENSEIFNER, 1), (RING, 0)):
        for schedule in schedules_of(algorithm, size, 1000):
            ops = schedule.operations
            sent = sum(ops[i].hi - ops[i].lo for i in schedule.find("send", activation=False))
            assert sent <= (2 + fold) * 1000
    power = size & (size - 1) == 0
    if power and 1024 % size == 0:
        for schedule in schedules_of(RABENSEIFNER, size, 1024):
            ops = schedule.operations
            sent = sum(ops[i].hi - ops[i].lo for i in schedule.find("send", activation=False))
            assert sent == 2 * (1024 - 1024 // size)


def chunks(schedule):
    found = {
        op.reg: (op.lo, op.hi)
        for op in schedule.operations
        if op.kind in ("send", "recv") and not op.activation
    }
    return [found[reg] for reg in sorted(found)]


@pytest.mark.parametrize("size", [size for size in SIZES if size > 1])
def test_ring_chunks_are_balanced(size):
    for count in counts_for(size):
        for schedule in schedules_of(RING, size, count):
            parts = chunks(schedule)
            assert len(parts) == size * segments_of(RING, size, count)
            assert parts[0][0] == 0 and parts[-1][1] == count
            assert all(a[1] == b[0] for a, b in pairwise(parts))
            lengths = {hi - lo for lo, hi in parts}
            assert max(lengths) - min(lengths) <= 1


# ---- execution ---------------------------------------------------------------------------------

GARBAGE = "not initialised"


@dataclass
class Register:
    ranks: tuple[int, ...] = ()
    null: bool = True


@dataclass
class Message:
    ranks: tuple[int, ...]
    null: bool
    buffered: bool
    values: list | None  # None: read from the sender when it travels


class Rank:
    """One rank's instance of its schedule."""

    def __init__(self, schedule, cells, has_data):
        self.schedule, self.ops = schedule, schedule.operations
        self.place = {at: place for place, at in enumerate(cells)}
        self.has_data = has_data
        self.arrived = [0] * len(self.ops)
        self.fired = [0] * len(self.ops)
        self.values = [GARBAGE] * (len(cells) - 1)
        self.registers = [Register() for _ in range(schedule.registers)]
        self.taken = False
        self.scratch_of = {}  # by lane, the receive that it belongs to
        self.scratch = {}
        self.reading = {}  # sends that have not finished
        self.writing = {}  # receives in place that have not

    def span(self, op):
        return slice(self.place[op.lo], self.place[op.hi])

    def assert_free(self, op, *users):
        assert self.taken
        for user in users:
            for other in user.values():
                assert not overlap(op, other), (self.schedule.rank, op, other)


class Round:
    """All ranks' instances; events are picked until none is left."""

    def __init__(self, schedules, with_data, generator, style, on_done):
        bounds = {0, schedules[0].count}
        for schedule in schedules:
            for op in schedule.operations:
                bounds |= {op.lo, op.hi} - {None}
        cells = sorted(bounds)
        self.cells = cells
        self.ranks = [Rank(s, cells, s.rank in with_data) for s in schedules]
        self.generator, self.style, self.on_done = generator, style, on_done
        self.events, self.lazy = [], []
        self.mail, self.landed = {}, 0

    # -- choosing what happens next

    def later(self, what, rank, index):
        lazy = (self.style, what) in (("late sends", "sent"), ("late messages", "land"))
        (self.lazy if lazy else self.events).append((what, rank, index))

    def run(self, outside):
        for rank, instance in enumerate(self.ranks):
            for index, op in enumerate(instance.ops):
                if op.need == 0 and op.kind != "nop":
                    self.later("fire", rank, index)
        for rank, label in outside:
            self.later("fire", rank, self.ranks[rank].schedule.labelled(label))
        while self.events or self.lazy:
            pool = self.events or self.lazy
            place = {"newest": len(pool) - 1, "oldest": 0}.get(self.style)
            if place is None:
                place = self.generator.randrange(len(pool))
                pool[place], pool[-1] = pool[-1], pool[place]
                place = len(pool) - 1
            what, rank, index = pool.pop(place)
            getattr(self, what)(rank, index)

    # -- events

    def fire(self, rank, index):
        instance = self.ranks[rank]
        instance.fired[index] += 1
        getattr(self, instance.ops[index].kind)(rank, index, instance, instance.ops[index])

    def finish(self, rank, index):
        instance = self.ranks[rank]
        for out in instance.ops[index].outs:
            instance.arrived[out] += 1
            if instance.arrived[out] == instance.ops[out].need:
                self.later("fire", rank, out)

    def nop(self, rank, index, instance, op):
        if op.label == "done":
            assert not instance.reading and not instance.writing
            self.on_done(self, rank)
        self.finish(rank, index)

    def copy(self, rank, index, instance, op):
        assert not instance.taken
        instance.taken = True
        for register in instance.registers:
            register.ranks, register.null = (rank,), not instance.has_data
        if instance.has_data:
            instance.values = [(rank,)] * len(instance.values)
        self.finish(rank, index)

    def send(self, rank, index, instance, op):
        key = rank, op.peer, op.tag
        if op.activation:
            message = Message((), True, True, None)
        else:
            instance.assert_free(op, instance.writing)
            register = instance.registers[op.reg]
            buffered = register.null or self.generator.random() < 0.3
            message = Message(register.ranks, register.null, buffered, None)
            if not register.null:
                assert GARBAGE not in instance.values[instance.span(op)]
            if buffered and not register.null:
                message.values = instance.values[instance.span(op)]
            if not buffered:
                instance.reading[index] = op
        assert key not in self.mail
        self.mail[key] = index, message
        if message.buffered:
            self.later("sent", rank, index)
        recv = self.ranks[op.peer].schedule.receives[rank, op.tag]
        if self.ranks[op.peer].fired[recv]:
            self.later("land", op.peer, recv)

    def recv(self, rank, index, instance, op):
        if op.place:
            instance.assert_free(op, instance.reading, instance.writing)
            instance.writing[index] = op
        elif not op.activation:
            assert op.lane not in instance.scratch_of, (rank, index)
            instance.scratch_of[op.lane] = index
        if (op.peer, rank, op.tag) in self.mail:
            self.later("land", rank, index)

    def land(self, rank, index):
        instance = self.ranks[rank]
        op = instance.ops[index]
        send, message = self.mail[op.peer, rank, op.tag]
        sender = self.ranks[op.peer]
        if not message.buffered:
            message.values = sender.values[sender.span(sender.ops[send])]
            self.later("sent", op.peer, send)
        if op.place:
            span = instance.span(op)
            instance.values[span] = message.values or [GARBAGE] * (span.stop - span.start)
            instance.registers[op.reg] = Register(message.ranks, message.null)
            del instance.writing[index]
        elif not op.activation:
            instance.scratch[op.lane] = message
        self.landed += 1
        self.finish(rank, index)

    def sent(self, rank, index):
        self.ranks[rank].reading.pop(index, None)
        self.finish(rank, index)

    def reduce(self, rank, index, instance, op):
        instance.assert_free(op, instance.reading, instance.writing)
        lane = self.ranks[rank].ops[op.source].lane
        assert instance.scratch_of.pop(lane) == op.source
        incoming, register = instance.scratch.pop(lane), instance.registers[op.reg]
        assert not set(register.ranks) & set(incoming.ranks)
        span = instance.span(op)
        if not incoming.null and register.null:
            instance.values[span] = incoming.values
        elif not incoming.null:
            own = instance.values[span]
            assert GARBAGE not in own
            instance.values[span] = [
                new + old if op.incoming_left else old + new
                for old, new in zip(own, incoming.values, strict=True)
            ]
        register.ranks += incoming.ranks
        register.null &= incoming.null
        self.finish(rank, index)


def expected_values(schedules, cells, with_data, in_rank_order):
    size = len(schedules)
    values = []
    parts = [(0, schedules[0].count)] if in_rank_order or size == 1 else chunks(schedules[0])
    for lo, hi in pairwise(cells):
        (first,) = (c for c, part in enumerate(parts) if part[0] <= lo and hi <= part[1])
        path = [(first + step) % size for step in range(size)]
        values.append(tuple(rank for rank in path if rank in with_data))
    return values


def execute(schedules, with_data, outside, seed, style, in_rank_order=True):
    """One round; the number of messages."""
    size = len(schedules)

    def result_is_right(running, rank):
        instance = running.ranks[rank]
        for register in instance.registers:
            assert sorted(register.ranks) == list(range(size))
            assert register.null == (not with_data)
        if with_data:
            assert instance.values == expected_values(
                schedules, running.cells, with_data, in_rank_order
            )

    running = Round(schedules, with_data, random.Random(seed), style, result_is_right)
    running.run(outside)
    for rank, instance in enumerate(running.ranks):
        for index, op in enumerate(instance.ops):
            from_outside = op.kind == "nop" and not op.ins
            times = outside.count((rank, op.label)) if from_outside else 1
            assert instance.fired[index] == times, (rank, index, op)
        result_is_right(running, rank)
    assert running.landed == len(running.mail)
    return running.landed


STYLES = st.sampled_from(["any", "any", "newest", "oldest", "late sends", "late messages"])


@by_algorithm
@by_size
@settings(max_examples=25, deadline=None)
@given(draw=st.data())
def test_execution(algorithm, size, draw):
    """Whichever ranks start, in whatever order: every operation and every contribution once."""
    if size > 17 and draw.draw(st.integers(0, 2)) != 0:
        return  # the long ones: a third of the examples
    ranks = st.sets(st.integers(0, size - 1))
    count = draw.draw(st.sampled_from(counts_for(size)), "count")
    initiators = draw.draw(ranks, "initiators")
    joiners = draw.draw(ranks, "joiners") if initiators else set(range(size))
    with_data = draw.draw(st.one_of(ranks, st.just(set(range(size)))), "with data")
    outside = [
        *((rank, "gate") for rank in range(size)),
        *((rank, "start") for rank in initiators),
        *((rank, "join") for rank in joiners),
    ]
    schedules = schedules_of(algorithm, size, count)
    messages = execute(
        schedules,
        with_data,
        outside,
        draw.draw(st.integers(0, 2**32), "seed"),
        draw.draw(STYLES, "style"),
        algorithm != RING,
    )
    assert messages == sum(len(schedule.find("send")) for schedule in schedules)


@pytest.mark.parametrize("size", [*range(1, 18), 33])
def test_synchronous_allreduce(cases, size):
    schedules = parse(cases("synchronous", size, 3))
    for schedule in schedules:
        check_order(schedule)
        assert not schedule.find("send", activation=True)
        assert schedule.operations[schedule.labelled("take")].ins == [schedule.labelled("gate")]
        assert [op.label for op in schedule.operations if op.kind == "nop"] == ["gate", "done"]
    gates = [(rank, "gate") for rank in range(size)]
    for seed in range(3):
        execute(schedules, set(range(size)), gates, seed, "any")


# ---- activation --------------------------------------------------------------------------------


def fired_from(schedule, first, outs=None):
    """Operations that fire when `first` does, in order, as the engine's queue has it."""
    ops = schedule.operations
    arrived, queue, order = Counter(), deque([first]), []
    while queue:
        at = queue.popleft()
        order.append(at)
        for after in outs[at] if outs else ops[at].outs:
            arrived[after] += 1
            if arrived[after] == ops[after].need:
                queue.append(after)
    return order


@by_algorithm
@by_size
def test_activation_is_wired_as_documented(algorithm, size):
    for schedule in schedules_of(algorithm, size, 3):
        ops = schedule.operations
        start, join, gate, activated, take, done = map(
            schedule.labelled, ("start", "join", "gate", "activated", "take", "done")
        )
        recvs = schedule.find("recv", activation=True)
        sends = schedule.find("send", activation=True)
        assert not ops[start].ins + ops[join].ins + ops[gate].ins
        assert [not ops[recv].ins for recv in recvs] == [True] * dimensions(size)
        assert (ops[take].need, ops[take].ins) == (2, [gate, activated])
        for source in (start, *recvs):
            fired = fired_from(schedule, source)
            assert len(fired) == len(set(fired))
            assert {activated, *sends} <= set(fired)
            assert take not in fired
        silent = fired_from(schedule, join)
        assert activated in silent
        assert not set(sends) & set(silent)
        for send in sends:
            assert ops[send].need == 1
            assert done in ops[send].ins


@pytest.mark.parametrize("size", [2, 3, 8, 13, 64, 1000])
def test_activation_has_edges_in_proportion_to_its_operations(size):
    """Memory of a rank is O(log P): no edge from every receive to every send."""
    (schedule,) = schedules_of(RECURSIVE_DOUBLING, size, 1)[:1]
    edges = sum(len(op.outs) for op in schedule.operations)
    assert edges <= 2 * len(schedule.operations)


@pytest.mark.parametrize("size", [*range(1, 34), 64, 65, 127, 128, 129])
def test_activation_reaches_everybody_in_log_p_hops(size):
    schedules = schedules_of(RECURSIVE_DOUBLING, size, 0)
    told = []  # rank -> source operation -> ranks that its firing tells
    for schedule in schedules:
        ops = schedule.operations
        sends = set(schedule.find("send", activation=True))
        sources = [schedule.labelled("start"), *schedule.find("recv", activation=True)]
        tells = {}
        for source in sources:
            tells[source] = []
            for i in fired_from(schedule, source):
                if i in sends:
                    (recv,) = schedules[ops[i].peer].find("recv", activation=True, tag=ops[i].tag)
                    tells[source].append((ops[i].peer, recv))
        told.append(tells)
    for initiator in range(size):
        hops = {initiator: 0}
        queue = deque([(initiator, schedules[initiator].labelled("start"))])
        while queue:
            rank, source = queue.popleft()
            for peer, recv in told[rank][source]:
                if peer not in hops:
                    hops[peer] = hops[rank] + 1
                    queue.append((peer, recv))
        assert len(hops) == size
        assert max(hops.values()) <= dimensions(size)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 16, 33])
def test_activation_sends_what_is_urgent_first(cases, size):
    """From `start` the largest subtree; on a message the smaller ones; the redundant last."""
    schedules = schedules_of(RECURSIVE_DOUBLING, size, 0)
    blocks = cases("outs", size).split("rank ")[1:]
    for schedule, block in zip(schedules, blocks, strict=True):
        ops = schedule.operations
        activated, take = schedule.labelled("activated"), schedule.labelled("take")
        outs = [
            [int(name[1:]) for name in line.split(":")[1].split()]
            for line in block.splitlines()[1:]
        ]
        assert [sorted(found) for found in outs] == [sorted(op.outs) for op in ops]
        down = list(range(dimensions(size)))[::-1]
        sends = set(schedule.find("send", activation=True))
        assert outs[activated][0] == take

        def tags(source):
            order = fired_from(schedule, source, outs)  # noqa: B023
            at = order.index(activated)  # noqa: B023
            return [
                [ops[i].tag for i in part if i in sends]  # noqa: B023
                for part in (order[:at], order[at:])
            ]

        assert tags(schedule.labelled("start")) == [down, []]
        for recv in schedule.find("recv", activation=True):
            tag = ops[recv].tag
            assert tags(recv) == [down[len(down) - tag :], down[: len(down) - tag]]


# ---- text --------------------------------------------------------------------------------------


def test_goal_text():
    """The spare rank of three: it folds in, and gets the result at the end."""
    text = dump(RECURSIVE_DOUBLING, 3, 4, lib.PP_INT16)
    block = text[text.index("rank 1 of 3") : text.index("rank 2 of 3")]
    assert (
        block
        == """\
rank 1 of 3 {
  // 4 elements of 2b, registers 1, scratch 0, tags 5
  l0: nop "start"
  l1: nop "join"
  l2: nop "gate"
  l3: nop "activated"
  l4: send 0b to 2 tag 0 activation
  l5: send 0b to 0 tag 1 activation
  l6: recv 0b from 0 tag 0 activation
  l7: recv 0b from 2 tag 1 activation
  l8: nop "tell"
  l9: nop "tell"
  l10: copy 8b reg 0 [0,4) "take"
  l11: send 8b to 0 tag 2 reg 0 [0,4)
  l12: recv 8b from 0 tag 4 reg 0 [0,4) in place
  l13: nop "done"
  l3 requires any of l1, l8
  l4 requires any of l8, l9, l13
  l5 requires any of l0, l8, l13
  l8 requires any of l6, l9
  l9 requires any of l0, l7
  l10 requires l2, l3
  l11 requires l10
  l12 requires l11
  l13 requires l12
}
"""
    )


@by_algorithm
@pytest.mark.parametrize("size", [1, 2, 5])
def test_dot_text_has_the_same_operations_and_edges(algorithm, size):
    text = dump(algorithm, size, 7, form=lib.PP_DOT)
    assert text.startswith("digraph schedule {\n") and text.endswith("}\n")
    assert text.count("{") == text.count("}") == size + 1
    schedules = schedules_of(algorithm, size, 7)
    vertices = set(re.findall(r"^ +(r\d+_l\d+) \[shape", text, re.MULTILINE))
    assert vertices == {f"r{s.rank}_l{i}" for s in schedules for i in range(len(s.operations))}
    edges = re.findall(r"^ +(r\d+_l\d+) -> (r\d+_l\d+);", text, re.MULTILINE)
    assert sorted(edges) == sorted(
        (f"r{s.rank}_l{before}", f"r{s.rank}_l{i}")
        for s in schedules
        for i, op in enumerate(s.operations)
        for before in op.ins
    )
    messages = re.findall(r"^ +(r\d+_l\d+) -> (r\d+_l\d+) \[style=dotted", text, re.MULTILINE)
    assert sorted(messages) == sorted(
        (
            f"r{s.rank}_l{i}",
            f"r{ops[i].peer}_l{schedules[ops[i].peer].find('recv', tag=ops[i].tag)[0]}",
        )
        for s in schedules
        for ops in [s.operations]
        for i in s.find("send")
    )


@by_algorithm
def test_text_is_the_same_every_time(algorithm):
    assert dump(algorithm, 6, 100) == dump(algorithm, 6, 100)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((99, 2, 1), "algorithm=99"),
        ((-1, 2, 1), "algorithm=-1"),
        ((RING, 0, 1), "size=0"),
        ((RING, -5, 1), "size=-5"),
        ((RING, 100000, 1), "size=100000"),
        ((RING, 2, 1, 1234), "type=1234"),
        ((RING, 2, 1, -1), "type=-1"),
        ((RING, 2, 2**62), f"count={2**62}"),
        ((RING, 2, 1, lib.PP_FLOAT64, 17), "format=17"),
    ],
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)) as error:
        dump(*arguments)
    assert error.value.args[0] == lib.PP_ERR_ARGUMENT


# ---- the choice of an algorithm ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "element"),
    [(100, lib.PP_FLOAT64), (20000, lib.PP_FLOAT64), (20000, lib.PP_INT8), (20000, lib.PP_FLOAT16)],
)
def test_auto_dumps_what_is_chosen(count, element):
    choice = ffi.new("pp_choice_t *")
    element_bytes = lib.pp_accumulator_bytes(element)
    place = 5, lib.PP_LINK_NODE
    assert lib.pp_choose(ffi.NULL, 0, count, element_bytes, *place, choice) == lib.PP_OK
    assert dump(lib.PP_ALGORITHM_AUTO, 5, count, element) == dump(
        choice.algorithm, 5, count, element
    )


# ---- what is refused ---------------------------------------------------------------------------

REFUSED = {
    "cycle": (lib.PP_ERR_ARGUMENT, "rank 0: operation l1 lies on or behind a cycle"),
    "self_edge": (lib.PP_ERR_ARGUMENT, "operation l0 lies on or behind a cycle"),
    "double_edge": (lib.PP_ERR_ARGUMENT, "two edges from l0 to l1"),
    "double_tag": (lib.PP_ERR_ARGUMENT, "l0 and l1 both receive tag 5"),
    "edge_to_nowhere": (lib.PP_ERR_ARGUMENT, "to operation 1, but there are 1 operations"),
    "need_more_than_there_are": (lib.PP_ERR_ARGUMENT, "l2 needs 3 predecessors, but has 2"),
    "any_of_none": (lib.PP_ERR_ARGUMENT, "l0 needs 1 predecessors, but has 0"),
    "send_to_self": (lib.PP_ERR_ARGUMENT, "send names peer 0"),
    "send_to_nobody": (lib.PP_ERR_ARGUMENT, "send names peer 3"),
    "recv_from_nobody": (lib.PP_ERR_ARGUMENT, "recv names peer -1"),
    "sparse_tag": (lib.PP_ERR_ARGUMENT, "tag 2147483648, which is not in 0..16777215"),
    "region_too_long": (lib.PP_ERR_ARGUMENT, "4 elements from element 1 on, but the vector has 4"),
    "region_wraps": (lib.PP_ERR_ARGUMENT, f"{2**64 - 1} elements from element 2 on"),
    "reduce_of_send": (lib.PP_ERR_ARGUMENT, "reduce names operation 0"),
    "reduce_of_placed": (lib.PP_ERR_ARGUMENT, "reduce names operation 0"),
    "reduce_of_nothing": (lib.PP_ERR_ARGUMENT, "reduce names operation 7"),
    "two_takes": (lib.PP_ERR_ARGUMENT, "takes the contribution a second time"),
    "commit_twice": (lib.PP_ERR_STATE, "is committed already"),
    "late_vertex": (lib.PP_ERR_STATE, "is committed and cannot be changed"),
    "matched": (lib.PP_OK, ""),
    "no_recv": (lib.PP_ERR_MISMATCH, "rank 0 sends l0 to rank 1 with tag 0, but that rank has"),
    "no_send": (lib.PP_ERR_MISMATCH, "rank 1 receives l0 from rank 0 with tag 0, but that rank"),
    "other_sender": (lib.PP_ERR_MISMATCH, "rank 0 sends l0 to rank 1 with tag 0, but that rank"),
    "sent_twice": (lib.PP_ERR_MISMATCH, "rank 0 sends l1 to rank 1 with tag 0, which it has used"),
    "other_register": (lib.PP_ERR_MISMATCH, "sends register 0, l0 of rank 1 receives 1"),
    "other_count": (lib.PP_ERR_MISMATCH, "sends 4 elements, l0 of rank 1 receives 3"),
    "half_activation": (lib.PP_ERR_MISMATCH, "only one of the two is an activation"),
    "wrong_order": (lib.PP_ERR_ARGUMENT, "schedule 1 of 3 is not that of this rank and size"),
    "other_vector": (lib.PP_ERR_MISMATCH, "rank 1: the vector has 5 elements, rank 0's has 4"),
    "other_tags": (lib.PP_ERR_MISMATCH, "rank 1: the schedule has 2 tags, rank 0's has 0"),
    "not_committed": (lib.PP_ERR_STATE, "rank 0: the schedule is not committed"),
    "no_such_rank": (lib.PP_ERR_ARGUMENT, "rank 3 is not in 0..2"),
    "no_ranks": (lib.PP_ERR_ARGUMENT, "at least one rank, not 0"),
    "auto_is_no_algorithm": (lib.PP_ERR_ARGUMENT, "algorithm=0"),
}


def test_every_refusal_is_looked_at(cases):
    assert cases("names").split() == list(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(cases, name):
    status, text = cases("refuse", name).rstrip("\n").split(" ", 1)
    assert (int(status), REFUSED[name][1] in text) == (REFUSED[name][0], True), text
