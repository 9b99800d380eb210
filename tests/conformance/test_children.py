"""Functions of a file that load_source brought may run in processes that a worker starts."""

from __future__ import annotations

import pytest

import disco_client as di

SOURCE = """\
import concurrent.futures
import multiprocessing
import os
import subprocess

import disco_server
{before}

def square(x):
    return [x * x, os.getpid(), "PMI_FD" in os.environ, __file__]


@disco_server.register_func("{name}.inherited")
def inherited():
    found = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True
    ).stdout
    return [line for line in found.splitlines() if "socket:" in line]


@disco_server.register_func("{name}.pool")
def pool(method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        return [pool.map(square, range(4)), os.getpid(), __file__]


@disco_server.register_func("{name}.executor")
def executor(method):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        return [list(pool.map(square, range(4))), os.getpid(), __file__]
"""


def test_no_program_that_a_worker_starts_inherits_its_connections(
    workers_of_their_own, open_session, tools_of, tmp_path
):
    """Whoever keeps one open would hide the worker's end."""
    session = open_session(1)
    source = tmp_path / "disco_children.py"
    source.write_text(SOURCE.format(name="disco_children", before=""))
    session.load_source(source)
    assert tools_of(session).results("disco_children.inherited") == [[]]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_pools_that_do_not_fork_find_the_functions_of_a_loaded_file(
    workers_of_their_own, session, tools, tmp_path, method
):
    """Their children import the file under its name; of MPI they inherit nothing."""
    name = f"disco_children_{method}"
    source = tmp_path / f"{name}.py"
    source.write_text(SOURCE.format(name=name, before=""))
    session.load_source(source)
    for how in ("pool", "executor"):
        for found, pid, file in tools.results(f"{name}.{how}", method):
            assert [number for number, *_ in found] == [0, 1, 4, 9]
            assert pid not in {child for _, child, *_ in found}
            assert not any(of_mpi for _, _, of_mpi, _ in found)
            assert {where for *_, where in found} == {file}


@pytest.mark.timeout(60)
def test_a_file_that_children_cannot_import_is_an_error_of_the_call(
    workers_of_their_own, session, tools, tmp_path
):
    """At once, with the reason: the pool would start children without end."""
    name = "disco_children_broken"
    source = tmp_path / f"{name}.py"
    before = "print(disco_server.current_worker().worker_id)"  # there is none in a child
    source.write_text(SOURCE.format(name=name, before=before))
    session.load_source(source)
    for how in ("pool", "executor"):
        tools.call(f"{name}.{how}", "spawn")
        with pytest.raises(di.BadFile, match=r"disco_children_broken\.py.* in a child process of"):
            session.sync_all()
