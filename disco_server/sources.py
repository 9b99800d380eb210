"""Where settings come from: command line, environment, file, and whose word counts.

The classes of `disco_server.config` say what there is to set; this says how a value is
found, read by the same code wherever it came from, and refused at the place where a
person wrote it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self, cast

from disco_client.errors import ConfigError
from disco_server.settings import Reader, did_you_mean, refuse

__all__ = ["Settings"]

_TABLES: Final = ("controller", "worker")
_SINGULAR: Final = {"allow_modules": "allow_module", "allow_functions": "allow_function"}


class Settings:
    """What both configurations share: checking and loading.

    `_READERS` has one reader a field; it turns what a person wrote into the
    field's type, and takes its own results back unchanged.
    """

    __slots__ = ()

    _TABLE: ClassVar[str]
    _READERS: ClassVar[Mapping[str, Reader]]

    def __post_init__(self) -> None:
        for name, read in self._READERS.items():
            # Frozen for everybody else; this is still the construction.
            object.__setattr__(self, name, read(getattr(self, name), name))
        self._complete()

    def _complete(self) -> None:
        """Chooses what was left to choose and checks settings against each other."""

    @classmethod
    def _combine(cls, name: str, value: object) -> object:
        """Joins what a person gave with the default, where a setting adds to it."""
        del name
        return value

    @classmethod
    def load(
        cls,
        flags: Mapping[str, object | None] | None = None,
        environ: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> Self:
        """Gathers the settings: flags before environment before file before default.

        Args:
            flags: Settings from the command line by field name; None and the
                empty tuple mean that the flag was not given.
            environ: The environment; by default this process's. An empty
                variable counts as absent.
            file: A TOML file with tables ``[controller]`` and ``[worker]``.

        Raises:
            ConfigError: A value is wrong, or the file cannot be read or names
                a setting that does not exist.
        """
        flags = flags or {}
        environ = os.environ if environ is None else environ
        table: Mapping[str, object] = {}
        if file is not None:
            table = _read_table(file, cls._TABLE, cls._READERS)
        for name in flags:
            if name not in cls._READERS:
                raise ConfigError(
                    f"{_flag(name)}: no such setting{did_you_mean(name, cls._READERS)}"
                )
        chosen: dict[str, Any] = {}
        for name, read in cls._READERS.items():
            variable = f"DISCO_{name.upper()}"
            if flags.get(name) not in (None, ()):
                value, where = flags[name], _flag(name)
            elif environ.get(variable):
                value, where = environ[variable], variable
            elif name in table:
                value, where = table[name], f"[{cls._TABLE}] {name} in {file}"
            else:
                continue
            chosen[name] = cls._combine(name, read(value, where))
        return cls(**chosen)


def _flag(name: str) -> str:
    """What a setting is called on the command line, where it is given once a value."""
    return f"--{_SINGULAR.get(name, name).replace('_', '-')}"


def _read_table(file: Path, table: str, known: Iterable[str]) -> Mapping[str, object]:
    """Returns one table of a TOML file, empty where the file has none of that name."""
    try:
        with file.open("rb") as stream:
            content: dict[str, object] = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{file}: expected a readable file, got: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: expected TOML, got: {error}") from error
    for name in content:
        if name not in _TABLES:
            raise ConfigError(f"{file}: no table or setting {name!r}{did_you_mean(name, _TABLES)}")
    values = content.get(table, {})
    if not isinstance(values, dict):
        raise refuse(f"{table} in {file}", f"a table [{table}]", values)
    settings = cast("dict[str, object]", values)
    known = list(known)
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"[{table}] in {file}: no setting {name!r}{did_you_mean(name, known)}"
            )
    return settings
