"""Which files beside a script are brought with it."""

from __future__ import annotations

import pytest

from disco_client.imports_beside import imports_beside


@pytest.fixture
def found(tmp_path):
    """Names what is brought with a script, whose folder has some modules and packages."""
    files = {
        "plain.py": "import second\nfrom . import nothing",
        "second.py": "import plain",
        "unused.py": "",
        "broken.py": "if:",
        "packed/__init__.py": "",
        "packed/inner/deep.py": "def later():\n    from beyond import x",
        "beyond.py": "",
        "spaced/module.py": "",
        "types/module.py": "",
        "data/numbers.txt": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def find(text):
        script = tmp_path / "script.py"
        script.write_text(text)
        return {each.relative_to(tmp_path).as_posix() for each in imports_beside(script)}

    return find


@pytest.mark.parametrize(
    ("text", "brought"),
    [
        ("import os, numpy, missing", set()),
        ("import plain", {"plain.py", "second.py"}),
        ("def f():\n    from packed.inner import deep", {"packed", "beyond.py"}),
        ("import broken, spaced.module", {"broken.py", "spaced"}),
        ("import types, data", set()),
    ],
)
def test_what_a_script_imports_from_its_folder_is_found(found, text, brought):
    """And what that imports from there, wherever the statement is; no folder without modules."""
    assert found(text) == brought
