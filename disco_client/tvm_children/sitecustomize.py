"""Gives Disco to the Python programs that a program of TVM's starts; see `disco_client.tvm`.

Python imports a module of this name when it starts, and that package puts this folder on the path
of the program's children.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:] = [each for each in sys.path if Path(each) != _HERE]

# The environment may have a module of this name of its own, which is found now. Python expects one
# in the table after this import.
_this = sys.modules.pop(__name__)
try:
    importlib.import_module(__name__)
except ModuleNotFoundError:
    sys.modules[__name__] = _this

# The program may have found Disco beside itself, where its children do not look.
if importlib.util.find_spec("disco_client") is None:
    sys.path.append(str(_HERE.parents[1]))
# Another Python, such as a tool's, may lack what Disco needs, and does not run TVM's programs.
with contextlib.suppress(ImportError):
    importlib.import_module("disco_client.tvm")
