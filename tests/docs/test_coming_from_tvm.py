"""The page for those who come from TVM's Disco: its table has every name, and its names exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import disco_client
import disco_client.distributed
from disco_server.rank import executor
from disco_server.rank.functions import registry
from disco_server.rank.tvm_table import INSTEAD, LIBRARIES, REFUSED, SERVED

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-tvm.md"
NAME = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
OF_A_LIBRARY = re.compile(rf"^runtime\.disco\.({'|'.join(LIBRARIES)})\.")

assert executor  # it registers what workers offer


def rows() -> list[tuple[list[str], str]]:
    """Of the table of names: TVM's, and what is said of them."""
    table = PAGE.read_text().partition("## Names")[2]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line[:1] == "|"]
    return [(NAME.findall(theirs), ours) for theirs, ours in lines[2:]]


def exists(name: str) -> bool:
    """Whether a name that the page mentions is one of ours."""
    if name.startswith("runtime.disco."):
        return name in registry()
    first, _, more = name.partition(".")
    for place in (disco_client, disco_client.distributed):
        found: Any = getattr(place, first, None)
        if found is not None:
            return not more or hasattr(found, more)
    return False


def test_what_is_said_to_be_the_same_exists():
    """As a class, a method or a function of workers; what is not here does not."""
    for theirs, ours in rows():
        if ours.startswith("the same"):
            assert [name for name in theirs if not exists(name)] == []
        if ours.startswith("not here"):
            assert [name for name in theirs if exists(name)] == []
        named = [name for name in NAME.findall(ours) if name not in LIBRARIES]
        assert [name for name in named if not exists(name)] == []


def of_nccl(names: Iterable[str]) -> set[str]:
    """The names with a library in them as they are with nccl, which the page has for all."""
    return {OF_A_LIBRARY.sub("runtime.disco.nccl.", name) for name in names}


def test_the_table_of_the_page_is_that_of_the_workers():
    """Each name of TVM's registry with what becomes of it, and the reason in the same words."""
    said = {
        name: LINK.sub(r"\1", ours)
        for theirs, ours in rows()
        for name in theirs
        if name.startswith(("runtime.", "nvshmem."))
    }
    served = {name for name, ours in said.items() if ours.startswith("the same")}
    assert served == of_nccl(SERVED)
    refused = {name: ours for name, ours in said.items() if ours.startswith("refused")}
    assert refused == {
        next(iter(of_nccl([name]))): f"refused: {why}" for name, why in REFUSED.items()
    }
    instead = {name: ours for name, ours in said.items() if ours.startswith("not here")}
    assert instead == {name: f"not here: {why}" for name, why in INSTEAD.items()}
    assert len(said) == len(served) + len(refused) + len(instead)


def test_what_the_workers_table_has_is_registered_or_is_not():
    """Served and refused names are found, for modules that may call them; others are not."""
    assert {*SERVED, *REFUSED} - set(registry()) == set()
    assert set(INSTEAD) & set(registry()) == set()
    with disco_client.ThreadedSession(1) as session:
        for name, why in (*REFUSED.items(), *INSTEAD.items()):
            session.get_global_func(name)()
            with pytest.raises(disco_client.RemoteError) as raised:
                session.sync_all()
            assert name in str(raised.value)
            assert why.replace("`", "") in str(raised.value)


def originals() -> set[str]:
    """The classes of TVM's Disco and relax.distributed, and the methods of the former."""
    folder = Path(find_spec("tvm").origin).parent
    found = set()
    for node in ast.parse((folder / "runtime/disco/session.py").read_text()).body:
        if isinstance(node, ast.ClassDef):
            methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= {f"{node.name}.{name}" for name in methods if not name.startswith("__")}
            found.add(node.name)
    for file in ("distributed/__init__.py", "distributed/transform/__init__.py"):
        for node in ast.parse((folder / "relax" / file).read_text()).body:
            if isinstance(node, ast.ImportFrom):
                found |= {each.name for each in node.names}
    for file in ("distributed/distributed.py", "ccl/ccl.py"):
        tree = ast.parse((folder / "relax/op" / file).read_text())
        found |= {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    return found - {"Session", "transform"}


def registered() -> set[str]:
    """What TVM registers for Disco in a process of its own."""
    program = (
        "from disco_server.modules import tvm\n"
        "names = tvm.runtime().registry.list_global_func_names()\n"
        "print(*[name for name in names if name.startswith('runtime.disco.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("find", [originals, registered])
def test_every_name_of_the_originals_is_in_the_table(find):
    """Of the release that is installed: its Python, and what it registers."""
    names = {name for theirs, _ in rows() for name in theirs}
    assert find() - names == set()


def test_the_programs_of_the_page_run(capfd, tmp_path):
    """As they are typed; the two differ in two lines, and TVM's runs unchanged by the command."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    before, after = (program for program in programs if "debug_copy_from" in program)
    changed = [
        (old, new)
        for old, new in zip(before.splitlines(), after.splitlines(), strict=True)
        if old != new
    ]
    assert changed == [
        ("from tvm.runtime import disco as di", "import disco_client as di"),
        ('sess.init_ccl("nccl", 0, 1)', 'sess.init_ccl("mpi", 0, 1)'),
    ]
    subprocess.run([sys.executable, "-c", after], check=True)
    (tmp_path / "program.py").write_text(before)
    command = ["-m", "disco_client.tvm", "program.py"]
    assert f"python {' '.join(command)}" in PAGE.read_text().splitlines()
    subprocess.run([sys.executable, *command], check=True, cwd=tmp_path)
    assert capfd.readouterr().out == "[2. 2. 2. 2.]\n" * 2


def test_the_entrypoint_of_the_page_runs(tmp_path, monkeypatch):
    """As it is typed."""
    (text,) = re.findall(r"```python\n(# my_worker\.py.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_worker.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with disco_client.ProcessSession(1, entrypoint="my_worker") as session:
        ones = session.broadcast([1.0, 1.0])
        assert session.get_global_func("my.double")(ones).numpy().tolist() == [2, 2]
