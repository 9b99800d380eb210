"""The notebook that shows Disco runs from top to bottom, and shows what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"


@pytest.fixture(scope="module")
def ran(cluster, tmp_path_factory):
    """The notebook with its outputs, against a cluster of two nodes."""
    # Here, because the tests of this folder that need a GPU run without it.
    from nbclient import NotebookClient

    book = read()
    where = tmp_path_factory.mktemp("tour")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCO_ADDRESS", cluster.address)
        # A kernel's own folder, not that of whoever runs the tests.
        patch.setenv("IPYTHONDIR", str(where / "ipython"))
        client = NotebookClient(book, timeout=50, resources={"metadata": {"path": str(where)}})
        client.execute()
    return book


def read():
    """The notebook as it is committed."""
    import nbformat

    book = nbformat.read(TOUR, as_version=4)
    nbformat.validate(book)
    return book


def shown(book, kind="text/html"):
    """What the cells display, in order."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    return [output.data[kind] for output in outputs if kind in output.get("data", ())]


@pytest.fixture(scope="module")
def printed(ran):
    """What the cells print."""
    outputs = [output for cell in ran.cells for output in cell.get("outputs", ())]
    return "".join(o.text for o in outputs if o.get("name") == "stdout")


def test_the_results_of_the_tour_are_right(printed):
    """Of calls, collectives, distributed tensors and the trace."""
    for line in (
        "worker 0 has [14. 14.]",
        "worker 3 has [110. 110.]",
        "the sum is [248. 248.]",
        "the session goes on: [248. 248.]",
        "S[0], P[sum] -> S[0], R",
        "[16. 16. 16.]",
        "4 ranks on 2 nodes",
        "80 collectives of 16 bytes; missing: []",
    ):
        assert line in printed


def test_the_error_of_the_tour_names_the_line_of_its_cell(printed):
    """And the workers on which it happened."""
    assert re.search(r"RemoteException of command \d+\nissued in line 1\non workers \[0", printed)


def test_the_tour_shows_tables_and_a_picture(ran):
    """Of the session, a reference, a mesh, a tensor, and what the ranks do."""
    session, reference, mesh, tensor, diagnosis, closed = shown(ran)
    assert "Session tour" in session
    assert '<td style="text-align:left">open</td>' in session
    assert "register" in reference
    assert "DeviceMesh of 2 x 2 workers" in mesh
    assert "<svg" in tensor
    assert "all ranks are idle" in diagnosis
    assert '<td style="text-align:left">closed</td>' in closed
    assert not any("<script" in each for each in shown(ran))


def test_the_tour_is_committed_without_outputs():
    """So that a change of it is a change of what it says."""
    book = read()
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells)
