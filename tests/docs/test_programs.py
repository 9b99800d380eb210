"""The programs of the pages do what the pages say, typed as they are written."""

from __future__ import annotations

import ast
import doctest
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import disco_client
import disco_server
from disco_client import distributed

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": 2,
    "docs/arrays.md": 2,
    "docs/asyncio.md": 4,
    "docs/checkpoints.md": 2,
    "docs/coming-from-dask.md": 2,
    "docs/coming-from-heat.md": 1,
    "docs/coming-from-monarch.md": 2,
    "docs/coming-from-ray.md": 2,
    "docs/coming-from-torch-distributed.md": 2,
    "docs/concepts.md": 1,
    "docs/dtensor.md": 2,
    "docs/errors.md": 1,
    "docs/functions.md": 5,
    "docs/gpu.md": 1,
    "docs/index.md": 4,
    "docs/interrupts.md": 1,
    "docs/modules.md": 1,
    "docs/programs.md": 1,
    "docs/reliability.md": 1,
    "docs/sessions.md": 1,
    "docs/timeline.md": 1,
    "docs/torch.md": 1,
    "docs/weights.md": 2,
    "docs/worker-functions.md": 3,
}
"""The pages, with how many programs each has at least."""

TYPED = {
    "docs/get-started.md": 4,
    "docs/stand-in.md": 0,
    "docs/tasks/own-function.md": 3,
    "docs/tasks/service.md": 4,
    "docs/tasks/slow-rank.md": 4,
    "docs/tasks/waiting.md": 4,
}
"""Pages of which every line is typed, in order and in one terminal, with their numbered steps."""

ELSEWHERE = {
    "docs/cli.md:train.py": "tests/disco_server/cli/test_run.py has a script with a session",
    "docs/coming-from-tvm.md:my_worker.py": "test_coming_from_tvm.py",
    "docs/coming-from-heat.md:heat_mean.py": "needs Heat and MPI",
    "docs/coming-from-monarch.md:monarch_counters.py": "needs Monarch",
    "docs/coming-from-torch-distributed.md:ddp.py": "tests/interop/test_docs.py",
    "docs/functions.md:averaging.py": "tests/interop/test_docs.py",
    "docs/functions.md:program.py": "tests/interop/test_docs.py",
    "docs/llm.md:ask.py": "tests/llm/test_service.py asks with the same client",
    "docs/reference/index.md:examples.py": "stands before each example of the reference, below",
    "docs/reliability.md:steps.py": "loses a worker",
    "docs/stores.md:store.py": "needs a store, which test_checkpoints_in_stores.py has",
    "docs/reliability.md:train.py": "hangs; docs/tasks/waiting.md has one that does",
}
"""Programs that this file does not run, and why."""

PROGRAM = re.compile(
    r"```python\n(# (\w+\.py)\b[^\n]*\n.*?)```\n(.*?)(?=\n```python\n# \w+\.py|\Z)", re.DOTALL
)
RUN = re.compile(
    r"```(?:console\n\$|sh\n) ?"
    r"((?:disco local [^\n]* -- )?(?:python|torchrun [^\n]*) (\w+\.py)[^\n]*)\n(.*?)```",
    re.DOTALL,
)
TYPED_LINE = re.compile(r"^\$ ([^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", re.MULTILINE)
BLOCK = re.compile(r"^```(python|console|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMES = re.compile(r"session-[0-9a-f]{6}")
PROGRESS = re.compile(r"^.*%\|█.*\n", re.MULTILINE)
PEERS = {"dask": ".venv-dask", "ray": ".venv-ray", "torch": ".venv-interop"}
"""Libraries that some programs import, and where `make bench-peers` and `make interop` put them."""

MODELS = {
    "heads.py": {"layers.0.kv.weight": (512, 510)},
    "layer.py": {"down": (512, 2048), "up": (2048, 512)},
    "weights.py": {
        "layers.0.attention.qkv.weight": (1536, 510),
        "layers.0.mlp.down.weight": (510, 2048),
        "layers.0.mlp.up.weight": (2048, 510),
        "norm.weight": (510,),
    },
}
"""What is in the `model.safetensors` that a program reads: ones, in these shapes."""

NAMES_OF = {
    "disco_client": [name for name in dir(disco_client) if name != "distributed"],
    "disco_client.distributed": distributed.__all__,
    "disco_server": disco_server.__all__,
}
PUBLIC = [f"{package}.{n}" for package, names in NAMES_OF.items() for n in names if n[0] != "_"]
PUBLIC += [f"disco_client.Session.{n}" for n in dir(disco_client.Session) if n[0] != "_"]
"""Every name that people import, and all that they call of a session."""

CHECKER = doctest.OutputChecker()


def same(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed; `...` stands for anything."""
    want, got = (NAMES.sub("", PROGRESS.sub("", text)) for text in (shown, printed))
    return CHECKER.check_output(want.rstrip(), got.rstrip(), doctest.ELLIPSIS)


def environment(folder: Path, scripts: Path = Path(sys.executable).parent) -> dict[str, str]:
    """That of a terminal of somebody who has Disco, and has never used it before."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DISCO_", "XDG_"))}
    path = os.pathsep.join([str(scripts), os.environ["PATH"]])
    return {**env, "PATH": path, "HOME": str(folder), "PYTHONUNBUFFERED": "1"}


def programs_of(page):
    """Each program that its page runs, with the command and the output."""
    for source, name, after in PROGRAM.findall((ROOT / page).read_text("utf-8")):
        for command, ran, output in RUN.findall(after)[:1]:
            # A page may also show what a program of the reader's cluster prints.
            alone = "connect(" not in source or command.startswith("disco ")
            if ran == name and alone and f"{page}:{name}" not in ELSEWHERE:
                yield pytest.param(source, name, command, output, id=f"{page}:{name}")


def scripts_for(source: str) -> Path:
    """Where the interpreter is that has the libraries that a program imports."""
    for peer, place in PEERS.items():
        if re.search(rf"^ *(import|from) {peer}\b", source, re.MULTILINE):
            if not (ROOT / place / ".stamp").exists():
                pytest.skip(f"needs {peer} in {place}: `make bench-peers`, `make interop`")
            return ROOT / place / "bin"
    return Path(sys.executable).parent


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_programs(page):
    """Otherwise nothing of it would be tested."""
    assert len(list(programs_of(page))) >= PAGES[page]


def test_no_program_of_the_site_is_left_out():
    """Each block with the name of a file is run here, or a reason says where else or why not."""
    run = {each.id for page in PAGES for each in programs_of(page)}
    pages = sorted(ROOT.glob("docs/**/*.md"))
    named = {
        f"{page.relative_to(ROOT).as_posix()}:{name}"
        for page in pages
        for _, name, _ in PROGRAM.findall(page.read_text("utf-8"))
        if page.relative_to(ROOT).as_posix() not in TYPED
    }
    assert named - run == set(ELSEWHERE)


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: str(page.relative_to(ROOT))
)
def test_what_is_shown_as_python_is_python(page):
    """Fragments too."""
    for kind, text in BLOCK.findall(page.read_text("utf-8")):
        if kind == "python":
            compile(text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("source", "name", "command", "output"), [each for page in PAGES for each in programs_of(page)]
)
def test_a_program_prints_what_its_page_shows(source, name, command, output, tmp_path):
    """In a shell, in a folder with nothing else; only names of sessions differ."""
    scripts = scripts_for(source)
    (tmp_path / name).write_text(source, "utf-8")
    if name in MODELS:
        ones = {tensor: np.ones(shape, "float32") for tensor, shape in MODELS[name].items()}
        save_file(ones, tmp_path / "model.safetensors")
    done = subprocess.run(
        command,
        shell=True,
        executable=shutil.which("sh"),
        cwd=tmp_path,
        env=environment(tmp_path, scripts),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert same(output, done.stdout), done.stdout + done.stderr


def typed(page):
    """What a page says to do, in order: (name, "", text) of a file, ("", command, output)."""
    for kind, text in BLOCK.findall((ROOT / page).read_text("utf-8")):
        if kind == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name, f"{page} has a program without the name of its file"
            yield name[1], "", text
        else:
            for command, output in TYPED_LINE.findall(text):
                yield "", command, output


class TypedTerminal:
    """A shell to which commands are given one by one, as somebody types them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shell = subprocess.Popen(
            ["sh"],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )

    def type(self, command: str) -> str:
        """Gives it a command, and returns what is printed until that has ended."""
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.write(f"{command}\nprintf '\\036\\n'\n")
        self._shell.stdin.flush()
        lines: list[str] = []
        for line in self._shell.stdout:
            if line.endswith("\036\n"):
                return "".join([*lines, line.removesuffix("\036\n")])
            lines.append(line)
        raise AssertionError(f"the shell ended at {command!r}:\n{''.join(lines)}")

    def close(self) -> None:
        """Ends what the page has left, which is nothing unless a step of it failed."""
        # In a subshell, as of $(jobs -p), a shell need not know its jobs.
        self.type("jobs -p > .jobs; kill -KILL $(cat .jobs) 2>/dev/null; disco local --stop")
        self._shell.communicate("exit\n", timeout=30)


@pytest.fixture
def terminal(request, tmp_path):
    """A terminal in an empty folder, or in a checkout where the page wants one."""
    folder = tmp_path
    if request.getfixturevalue("page") == "docs/get-started.md":
        folder = tmp_path / "checkout"
        folder.mkdir()
        for name in ("LICENSE", "README.md", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        for name in ("deploy", "disco_client", "disco_server"):
            shutil.copytree(ROOT / name, folder / name)
    elif request.getfixturevalue("page") == "docs/stand-in.md":
        (tmp_path / "disco").symlink_to(ROOT)
    opened = TypedTerminal(folder)
    yield opened
    opened.close()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", TYPED)
def test_a_page_is_typed_from_its_first_line_to_its_last(page, terminal):
    """Each command prints what the page shows, where `...` stands for anything."""
    for name, command, shown in typed(page):
        if name:
            (terminal.folder / name).write_text(shown, "utf-8")
            continue
        printed = terminal.type(command)
        if command.startswith("pip ") and re.search("No matching distribution|Could not", printed):
            pytest.skip(f"no package index is reached: {printed}")
        assert same(shown, printed), f"$ {command}\n{printed}"


@pytest.mark.timeout(150)
def test_the_cluster_of_its_page_runs_the_program_that_it_names(tmp_path):
    """Typed as it is written, but for the address of one machine, and daemons in the background."""
    programs = {name: text for text, name, _ in PROGRAM.findall((ROOT / "README.md").read_text())}
    (tmp_path / "scale.py").write_text(programs["scale.py"], "utf-8")
    here = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.1"
    blocks = BLOCK.findall((ROOT / "docs" / "cluster.md").read_text("utf-8"))
    lines = "".join(text for kind, text in blocks if kind == "sh").replace("\\\n", "")
    terminal = TypedTerminal(tmp_path)
    try:
        for line in lines.replace("10.0.0.1", here).splitlines():
            waits = line.startswith(("disco-controller", "disco-worker"))
            printed = terminal.type(f"{line} >> log 2>&1 &" if waits else line)
            if line.startswith("disco-controller"):  # who connects before it listens is refused
                terminal.type("for _ in $(seq 200); do grep -q ready log && break; sleep 0.1; done")
            if line == "python scale.py":
                assert printed.endswith("worker 2 has [100. 100. 100.]\n"), printed
            elif line.startswith("disco status"):
                assert "ready" in printed
                break
        else:
            pytest.fail("the page shows no status")
    finally:
        terminal.close()


@pytest.mark.parametrize("page", [page for page in TYPED if TYPED[page]])
def test_a_page_has_the_steps_that_it_names(page):
    """As numbered headings, and in the table of the first page."""
    text = (ROOT / page).read_text("utf-8")
    steps = [int(number) for number in re.findall(r"^## (\d+)\. ", text, re.MULTILINE)]
    assert steps == list(range(1, TYPED[page] + 1))
    word = {3: "Three", 4: "Four"}[len(steps)]
    assert re.search(rf"^{word} steps", text, re.MULTILINE)
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert re.search(rf"\| {len(steps)} \| \[[^]]+\]\({page.removeprefix('docs/')}\)", home)


@pytest.fixture(scope="module")
def documented():
    """The docstring of every public name, as the site shows it."""
    hooks = runpy.run_path(str(ROOT / "docs" / "site" / "hooks.py"))
    found = dict(hooks["public_names"]())
    members = found["disco_client.Session"].members.items()
    found |= {f"disco_client.Session.{n}": each for n, each in members if n[0] != "_"}
    return {name: thing.docstring for name, thing in found.items()}


@pytest.fixture
def before_examples(cluster, tmp_path, monkeypatch):
    """What the page says that stands before each example, and a cluster, in an empty folder."""
    page = (ROOT / "docs" / "reference" / "index.md").read_text("utf-8")
    ((source, *_),) = PROGRAM.findall(page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DISCO_ADDRESS", cluster.address)
    names = {}
    exec(source, names)
    yield names
    names["session"].shutdown()


def test_the_reference_has_every_public_name(documented):
    """Those that the site looks at are those that the packages offer."""
    assert sorted(documented) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_an_example_of_the_reference_prints_what_it_shows(name, documented, before_examples):
    """Each public name has one, in its docstring."""
    docstring = documented[name]
    assert docstring, f"{name} wants a docstring"
    example = doctest.DocTestParser().get_doctest(docstring.value, before_examples, name, name, 0)
    assert example.examples, f"{name} wants an example below `Examples:`"
    wrong = []
    runner = doctest.DocTestRunner(CHECKER, verbose=False, optionflags=doctest.ELLIPSIS)
    assert runner.run(example, out=wrong.append).failed == 0, "".join(wrong)
