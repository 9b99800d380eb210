"""What the tests of the language model share: the real model, and its plain forward."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# As a script, chat.py has its own folder on the path; the tests do as Python does.
sys.path.insert(0, str(EXAMPLES))

from llm.config import find_model, open_checkpoint  # noqa: E402
from llm.plain import Plain  # noqa: E402
from llm.text import Text  # noqa: E402


@pytest.fixture(scope="session")
def checkpoint():
    return open_checkpoint(find_model(None))


@pytest.fixture(scope="session")
def text(checkpoint):
    return Text(checkpoint)


@pytest.fixture(scope="session")
def plain(checkpoint):
    return Plain(checkpoint)
