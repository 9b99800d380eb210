"""The map of the code: what it links is there, and is what it says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "architecture.md"
PAGES = (MAP, ROOT / "CONTRIBUTING.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)\s]*\)")
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`")
HEADING = re.compile(r"#{2,3} (.*)")
JOURNEYS = (
    "The command",
    "Its reply",
    "64 MiB from the host to worker 0",
    "A rank's death to the exception",
)


def links(line: str, page: Path = MAP) -> list[Path]:
    """The files and folders that a line of a page links."""
    targets = [target for target in LINK.findall(line) if "://" not in target]
    return [(page.parent / target).resolve() for target in targets]


@cache
def definitions(path: Path) -> frozenset[str]:
    """The classes, functions, attributes and constants that a file defines, by dotted names."""

    def within(body: list[ast.stmt], before: str) -> set[str]:
        found: set[str] = set()
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(before + node.name)
            if isinstance(node, ast.ClassDef):
                inside = f"{before}{node.name}."
                found |= within(node.body, inside)
                found |= {inside + name for name in set_on_self(node)}
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            found |= {before + target.id for target in targets if isinstance(target, ast.Name)}
        return found

    return frozenset(within(ast.parse(path.read_text()).body, ""))


def set_on_self(cls: ast.ClassDef) -> set[str]:
    """The attributes that the methods of a class set."""
    return {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def sections() -> dict[str, list[str]]:
    """The lines of the map below each heading."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in MAP.read_text().splitlines():
        matched = HEADING.fullmatch(line)
        heading = matched[1] if matched else heading
        found.setdefault(heading, []).append(line)
    return found


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    table = [line for line in sections()[heading] if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in table]


def packages() -> set[str]:
    """Every folder with a module of its own, generated code apart."""
    return {
        module.parent.relative_to(ROOT).as_posix()
        for package in ("disco_client", "disco_server")
        for module in (ROOT / package).rglob("*.py")
        if module.name != "__init__.py" and module.parent.name != "pb"
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_somewhere(page):
    """Files and folders that the page links are there."""
    found = [path for line in page.read_text().splitlines() for path in links(line, page)]
    assert len(found) > 5
    assert not [path for path in found if not path.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_line_names_is_in_the_files_that_it_links(page):
    """Each name beside a link to a Python file is defined there, and each such file has one."""
    wrong: list[str] = []
    checked = 0
    for line in page.read_text().splitlines():
        files = [path for path in links(line, page) if path.suffix == ".py"]
        names = NAME.findall(line)
        if not files or not names:
            continue
        checked += 1
        defined = {path: definitions(path) for path in files}
        wrong += [
            f"{name} is in none of {[path.name for path in files]}"
            for name in names
            if not any(name in each for each in defined.values())
        ]
        wrong += [
            f"{path.name} has none of {names}"
            for path, each in defined.items()
            if not each.intersection(names)
        ]
    assert checked > 3
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("question", "path", "name"),
    [
        (
            "a reply is acknowledged",
            "disco_client/transport/received.py",
            "ReceivedReplies.handled",
        ),
        ("a reply is acknowledged", "disco_server/worker/kept_replies.py", "KeptReplies.forget"),
        ("an unfit allreduce is refused", "disco_server/collectives/preflight.py", "decide"),
        ("a lost node is noticed", "disco_server/core/cluster.py", "Cluster.tick"),
        ("a setting is read", "disco_server/config.py", "Settings.load"),
        ("a 64 MiB array is mapped", "disco_client/arrays/mapped_memory.py", "MappedMemory"),
        ("a session is placed on nodes", "disco_server/core/nodes.py", "place"),
        ("a rank is started", "disco_server/core/node.py", "NodeSession.start"),
        ("a hang is diagnosed", "disco_client/hang_analysis.py", "judge"),
        ("a token is checked", "disco_server/controller/auth.py", "TokenBook.find"),
        (
            "a captured program is replayed on the ranks",
            "disco_server/rank/program.py",
            "CompiledProgram.run",
        ),
        ("weights are read in parts", "disco_server/storage/slices.py", "plan_part"),
    ],
)
def test_the_map_answers_in_which_file(question, path, name):
    """Whoever asks finds one line, which links the file and names what does it there."""
    (answer,) = (answer for asked, answer in rows("In which file") if asked == question)
    assert ROOT / path in links(answer)
    assert f"`{name}`" in answer
    assert name in definitions(ROOT / path)


def test_each_folder_has_one_sentence():
    """The list has every package of client and server, generated code apart, and no other."""
    listed = {}
    for folder, sentence in rows("The folders"):
        (path,) = links(folder)
        assert folder.startswith(f"[{path.relative_to(ROOT)}]")
        listed[path.relative_to(ROOT).as_posix()] = sentence
    assert set(listed) == packages()
    assert not [folder for folder, sentence in listed.items() if sentence.find(". ") != -1]
    assert not [folder for folder, sentence in listed.items() if not sentence.endswith(".")]


@pytest.mark.parametrize("journey", JOURNEYS)
def test_a_journey_has_as_many_files_as_it_says(journey):
    """Its table links each file through which it goes, in a folder that the list has."""
    (counted,) = (cells[1] for cells in rows("The journeys, counted") if cells[0] == journey)
    files = {path for cells in rows(journey) for path in links(cells[2])}
    assert int(counted) == len(files)
    folders = {path.parent.relative_to(ROOT).as_posix() for path in files}
    assert folders <= {
        links(cells[0])[0].relative_to(ROOT).as_posix() for cells in rows("The folders")
    }
