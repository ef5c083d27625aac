"""The memory of a node, without ranks: tests/unit/c/shared_cases.c."""

import subprocess

import pytest
from support.c_cases import SANITIZED, compiled

WRAPPED = ("posix_fallocate", "fopen", "sysconf", "mmap")
NODE = ("board.c", "job.c", "keeper.c", "lock.c", "node.c", "ranges.c")


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    parts = ["base/*.c", *(f"node/{name}" for name in NODE)]
    options = [*SANITIZED, *(f"-Wl,--wrap={name}" for name in WRAPPED)]
    program = compiled(tmp_path_factory.mktemp("cases"), "shared_cases", parts, *options)
    return lambda *words: subprocess.run([program, *words], check=True, timeout=60)


def test_signals_do_not_keep_memory_from_being_allocated(cases):
    cases("interrupted")


def test_a_result_that_is_committed_is_not_asked_for_again(cases):
    cases("full")


def test_ranges_of_any_size_are_used_again(cases):
    cases("sizes")


@pytest.mark.parametrize("seed", range(20))
def test_a_loop_takes_no_more_and_more(cases, seed):
    cases("loop", str(seed))


@pytest.mark.parametrize("seed", range(20))
def test_a_range_is_found_where_enough_is_free(cases, seed):
    """Whichever rank has freed what is there: as on a map of all pages."""
    cases("random", str(seed))


def test_more_free_ranges_than_the_table_takes(cases):
    cases("many")


def test_kernels_with_large_pages(cases):
    cases("pages")
