"""The algorithms of rounds made of messages, as `pypartial tune` measures them."""

from __future__ import annotations

from _common import Run, Table, main, number, size_text

SECONDS = (90, 30)
REPEATS = (1, 1)
RANKS = (2, 4, 8)
SIZES = ("8", "1K", "4K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "4M", "16M")
QUICK_SIZES = ("8", "16K", "256K", "4M")
NOTES = (
    "NumPy buffers; us of recursive doubling, the others as multiples of it, the fastest in bold. "
    "Medians over blocks; of several launches the last."
)


def measure(run: Run) -> Table:
    sizes = QUICK_SIZES if run.quick else SIZES
    found: dict[int, list] = {}
    for ranks in run.turns(RANKS):
        few = sizes[:-1] if ranks > 4 else sizes  # 16 MB on 8 ranks takes too long
        command = f"tune --dry-run --budget {'3s' if run.quick else '12s'}"
        found[ranks] = run.bench(ranks, command + "".join(f" --size {size}" for size in few))
    names = list(dict.fromkeys(row["algorithm"] for row in found[RANKS[0]]))
    head = ["size", *(f"{name}, {ranks} ranks" for ranks in RANKS for name in names)]
    table = Table([text.replace("_", " ") for text in head], notes=NOTES)
    for size in sorted({row["bytes"] for row in found[RANKS[0]]}):
        cells = [text for ranks in RANKS for text in times(found[ranks], names, size)]
        table.rows.append([size_text(size), *cells])
    return table


def times(rows: list, names: list[str], size: int) -> list[str]:
    us = {row["algorithm"]: row["latency_us"]["p50"] for row in rows if row["bytes"] == size}
    if not us:
        return [""] * len(names)
    least, first = min(us.values()), us[names[0]]
    texts = [number(first), *(f"{us[name] / first:.2f}" for name in names[1:])]
    return [
        f"**{text}**" if us[name] == least else text
        for name, text in zip(names, texts, strict=True)
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
