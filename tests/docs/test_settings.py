"""The page of settings says what the code reads."""

from __future__ import annotations

import re

from settings_page import PAGE, page

ROOT = PAGE.parents[1]
# Which the product's own processes tell each other.
INTERNAL = {"DISCO_ANSWERS_FD", "DISCO_CONFINEMENT", "DISCO_FLIGHT_FD", "DISCO_PARENT_PID"}
INTERNAL |= {"DISCO_KVSNAME", "DISCO_PROGRESS_FD", "DISCO_TVM"}


def test_the_page_is_what_the_tables_say():
    """``make settings`` writes it anew."""
    assert PAGE.read_text() == page()


def test_no_variable_is_read_that_is_not_on_the_page():
    """Of those that people set; what processes of the product tell each other is not."""
    sources = [file.read_text() for name in ("client", "server") for file in files(name)]
    read = {name for text in sources for name in re.findall(r'"(DISCO_[A-Z_]+[A-Z])"', text)}
    written = set(re.findall(r"DISCO_[A-Z_]+[A-Z]", PAGE.read_text()))
    assert read - written == INTERNAL


def files(name):
    return (ROOT / f"disco_{name}").rglob("*.py")
