"""Small defects of the C core, drawn at random: one operator, constant or statement of a function.

A mutant is kept as the text of its line and of what stands in its place, with the function and the
file. So it is found again where the line has moved to another place, or the function to another
file.
"""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# What a line may be changed to; one of the places of a line where it fits is drawn.
OPERATORS = {
    r" == ": " != ",
    r" != ": " == ",
    r" < ": " <= ",
    r" <= ": " < ",
    r" > ": " >= ",
    r" >= ": " > ",
    r" \+ ": " - ",
    r" - ": " + ",
    r" && ": " || ",
    r" \|\| ": " && ",
    r"(?<=[(\s])!(?=\w)": "",
    r" \+= ": " -= ",
    r"\btrue\b": "false",
    r"\bfalse\b": "true",
}
CONSTANT = re.compile(r"(?<![\w.\"%])(\d+)(?![\w.\"])")
STATEMENT = re.compile(r"^\s+(?!return|break|continue|goto|else)\w[^{}]*;$")
ORDER = re.compile(r"memory_order_(?:acquire|release|acq_rel|seq_cst)")
HEAD = re.compile(r"^(?!static_assert|_Static_assert|typedef|#)\w[^;=]*?\b(\w+)\(")

# Rooms that are about to change: half of the mutants are there.
CHANGING = re.compile(
    r"(cuda|groups|policy|coll/preduce)/|coll/(patience|rounds/results)|progress/|api_device|"
    r"api_preduce"
)
DEVICES = re.compile(
    r"cuda/|api_device|coll/(groups|preduce)/on_device|progress/(ahead|device|direct|in_place|kept|lend|look|"
    r"pinned|staged|staging|vault)"
)
# What the compiler makes is looked at, also of inline functions in headers.
KEEP = ("-fkeep-static-functions", "-fkeep-inline-functions")
SIMULATION = re.compile(r"sim/|transport/sim|reduce/fenced")


@dataclass(frozen=True)
class Mutant:
    """One defect.

    Attributes
    ----------
    number : int
    file : str
        Below ``csrc``, where it was drawn.
    function : str
    kind : str
        "operator", "constant", "statement" or "order" (of memory).
    line, instead : str
        Without the spaces at their ends.
    """

    number: int
    file: str
    function: str
    kind: str
    line: str
    instead: str

    @property
    def is_of_devices(self) -> bool:
        return DEVICES.match(self.file) is not None


@dataclass(frozen=True)
class Place:
    """A line of a function, and a change of it."""

    file: str
    function: str
    kind: str
    number: int
    line: str
    instead: str


def lines_of_functions(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield the function, the number and the text of each line of code in a function."""
    head = function = ""
    is_comment = False
    for number, line in enumerate(text.splitlines()):
        if line.startswith("{"):
            found = HEAD.match(head)
            function = found.group(1) if found else ""
        elif line.startswith("}"):
            function = head = ""
        elif not function:
            head = f"{head} {line}".strip() if head and not head.endswith((";", "}")) else line
            continue
        code = line.strip()
        was_comment, is_comment = is_comment, (is_comment or "/*" in code) and "*/" not in code
        if function and line.startswith("    ") and not was_comment and code[:1] not in "/*#":
            yield function, number, line


def places(root: Path) -> list[Place]:
    """Return all mutants that could be drawn."""
    found = []
    for path in sources(root):
        file = path.relative_to(root / "csrc").as_posix()
        if SIMULATION.match(file):
            continue
        lines = list(lines_of_functions(path.read_text(encoding="utf-8")))
        times = Counter((function, line.strip()) for function, _, line in lines)
        for function, number, line in lines:
            if times[function, line.strip()] > 1:  # it could not be found again
                continue
            for kind, instead in changes(line.partition("/*")[0].rstrip()):
                found.append(Place(file, function, kind, number, line, instead))
    return found


def sources(root: Path) -> list[Path]:
    return sorted((root / "csrc").rglob("*.[ch]"))


def changes(code: str) -> Iterator[tuple[str, str]]:
    """Yield what a line may be changed to."""
    if '"' in code:  # a text
        return
    for pattern, instead in OPERATORS.items():
        for found in re.finditer(pattern, code):
            yield "operator", code[: found.start()] + instead + code[found.end() :]
    for found in CONSTANT.finditer(code):
        more = str(int(found.group()) + 1)
        yield "constant", code[: found.start()] + more + code[found.end() :]
    for found in ORDER.finditer(code):
        yield "order", code[: found.start()] + "memory_order_relaxed" + code[found.end() :]
    if STATEMENT.match(code) and code.count("(") == code.count(")") and " = " not in code:
        yield "statement", code[: len(code) - len(code.lstrip())] + ";"


def draw(root: Path, count: int, orders: int, seed: int) -> list[Mutant]:
    """Return mutants, at most one of a function, each of which changes what the compiler makes.

    Half of them are in rooms that are about to change; `orders` are of memory orders.
    """
    source = random.Random(seed)
    candidates = places(root)
    source.shuffle(candidates)
    wanted = {"order": orders, True: (count - orders) // 2, False: (count - orders + 1) // 2}
    taken: set[tuple[str, str]] = set()
    chosen = []
    # Each kind has the same chance: there are few statements, and many constants.
    while any(wanted.values()):
        left = ["order"] if wanted["order"] else []
        kind = source.choice(["operator", "constant", "statement", *left])
        place = next(one for one in candidates if one.kind == kind)
        candidates.remove(place)
        room = "order" if kind == "order" else CHANGING.match(place.file) is not None
        if not wanted[room] or (place.file, place.function) in taken or not counts(root, place):
            continue
        wanted[room] -= 1
        taken.add((place.file, place.function))
        chosen.append(place)
    chosen.sort(key=lambda one: (one.file, one.number))
    return [
        Mutant(n, one.file, one.function, one.kind, one.line.strip(), one.instead.strip())
        for n, one in enumerate(chosen, 1)
    ]


def counts(root: Path, place: Place) -> bool:
    """Return whether the mutant compiles, and makes another program.

    Weaker memory orders often make the same one here: ThreadSanitizer judges those.
    """
    path = root / "csrc" / place.file
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for change in (False, True):
            lines = path.read_text(encoding="utf-8").splitlines()
            if change:
                lines[place.number] = place.instead
            source = Path(folder) / "it.c"
            source.write_text("\n".join(lines) + "\n", encoding="utf-8")
            made = source.with_suffix(".o")
            options = ["-O1", "-std=gnu11", "-w", "-DPP_SIM=1", f"-I{path.parent}", *KEEP]
            command = ["mpicc", *options, f"-I{root / 'csrc'}", "-c", str(source), "-o", str(made)]
            if subprocess.run(command, capture_output=True).returncode:
                return False
            objects.append(made.read_bytes())
    return place.kind == "order" or objects[0] != objects[1]


def plant(root: Path, mutant: Mutant) -> Path | None:
    """Put a mutant into the sources; return the file, None if its line is there no more."""
    found = []
    for path in sources(root):
        text = path.read_text(encoding="utf-8")
        if mutant.line not in text:
            continue
        for function, number, line in lines_of_functions(text):
            if function == mutant.function and line.strip() == mutant.line:
                found.append((path, number, line))
    if not found:
        return None
    path, number, line = found[0]
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[number] = line[: len(line) - len(line.lstrip())] + mutant.instead
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
