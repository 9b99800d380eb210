"""The Dockerfile, as far as it can be read. `make image-test` builds it."""

from __future__ import annotations

import re
import tomllib

from deploying.charts import DEPLOY

ROOT = DEPLOY.parent
TEXT = (DEPLOY / "Dockerfile").read_text()
LINES = TEXT.replace("\\\n", " ").splitlines()


def test_what_is_copied_is_let_in():
    """.dockerignore lets through what the stages copy from the tree, and nothing else."""
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for line in LINES
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in allowed)


def test_variants_are_extras():
    """Each GPU variant installs the extra of its name, and there is one for each CUDA."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (named,) = re.findall(r"^\s+(cuda\S+)\) extras=", TEXT, re.MULTILINE)
    wanted = {name for name in extras["optional-dependencies"] if name.startswith("cuda")}
    assert set(named.split("|")) == wanted


def test_stages_that_run_are_nobody_s():
    """Every stage that can be run ends as a user without a name's rights."""
    stages = re.split(r"^FROM ", TEXT, flags=re.MULTILINE)[1:]
    ends = {stage.split(" AS ")[1].split()[0]: stage for stage in stages}
    for name in ("example", "disco"):
        users = re.findall(r"^USER (.*)$", ends[name], re.MULTILINE)
        assert users[-1:] == ["65532:65532"]
    assert stages[-1].split(" AS ")[1].split()[0] == "disco"  # built unless another is asked for


def test_the_base_can_be_pinned():
    """All stages begin with the one image that is given."""
    bases = {line.split()[1] for line in LINES if line.startswith("FROM ")}
    assert bases == {"${BASE_IMAGE}", "installed"}


def test_the_models_are_those_of_the_examples():
    """The same as `make venv` installs."""
    (models,) = re.findall(r"^MODELS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(models.split()) == 2
    assert all(model in TEXT for model in models.split())
