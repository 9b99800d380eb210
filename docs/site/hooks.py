"""What MkDocs does not do by itself for this repository's pages; `mkdocs.yml` names this file.

Links are written for readers of the repository, so that many lead out of ``docs/``. Files
that are pages themselves become pages of the site, every other file that a page links is
shown as a page of its own, and links are rewritten to these. What leads nowhere is a
warning, and so is a public name without a docstring or without a place in the reference:
a strict build fails for them.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import griffe
from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["on_config", "on_files", "on_page_markdown", "on_pre_build", "public_names"]

ROOT = Path(__file__).parents[2]
REPOSITORY_PAGES = {
    "CHANGELOG.md": "repository/changelog.md",
    "CONTRIBUTING.md": "repository/contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "repository/security.md",
    "benchmarks/README.md": "repository/benchmarks.md",
    "examples/README.md": "repository/examples.md",
}
"""Pages that stand elsewhere in the repository, and where they are in the site."""

PACKAGES = ("disco_client", "disco_client.distributed", "disco_server")
EMBEDDED = ("ProcessSession", "SocketSession", "ThreadedSession")
"""Public names of the client that are not in its ``__all__``, because they need the server."""

_LINK = re.compile(r"(\]\()(?![a-z]+:|#|/)([^)#\s]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^( *)(```+)[^`\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_PLACED = re.compile(r"^::: (\S+)", re.MULTILINE)
_LANGUAGES = {".py": "python", ".proto": "protobuf", ".toml": "toml", ".yaml": "yaml"}

log = logging.getLogger("mkdocs.hooks.disco")


class _GithubLists(Extension):
    """Lists as GitHub reads them: what is two spaces in belongs to the item above it."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  (named by the library)
        md.tab_length = 2


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the manner of lists to Python-Markdown."""
    config.markdown_extensions.append(_GithubLists())  # type: ignore[arg-type]
    return config


def on_pre_build(config: MkDocsConfig) -> None:
    """Warns of public names that have no docstring, or that no page of the reference has."""
    pages = Path(config.docs_dir, "reference").glob("*.md")
    placed = {name for page in pages for name in _PLACED.findall(page.read_text("utf-8"))}
    for name, thing in public_names():
        if name not in placed:
            log.warning("%s is public, and no page of docs/reference/ has it", name)
        for where, documented in _documented(name, thing):
            if not documented:
                log.warning("%s is public and wants a docstring", where)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that stand elsewhere, and one for each other file that a page links."""
    for origin, uri in REPOSITORY_PAGES.items():
        if not files.get_file_from_path(uri):
            text = (ROOT / origin).read_text("utf-8")
            files.append(File.generated(config, uri, content=text))
    linked = {
        target
        for file in files.documentation_pages()
        for target in _links(file.content_string, _origin(file.src_uri))
    }
    for target in sorted(linked):
        uri = _uri(target)
        if uri.startswith("source/") and (ROOT / target).exists():
            files.append(File.generated(config, uri, content=_source_page(target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links that lead out of ``docs/``; one that leads nowhere stays, and is reported."""
    del config, files
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    origin = _origin(uri)

    def rewrite(link: re.Match[str]) -> str:
        target = _resolve(link[2], origin)
        if not (ROOT / target).exists():
            return link[0]
        return link[1] + posixpath.relpath(_uri(target), posixpath.dirname(uri) or ".") + link[3]

    return _outside_fences(markdown, lambda text: _LINK.sub(rewrite, text))


def _origin(uri: str) -> str:
    """The path in the repository of a page of the site."""
    found = [origin for origin, placed in REPOSITORY_PAGES.items() if placed == uri]
    return found[0] if found and uri != "index.md" else f"docs/{uri}"


def _uri(target: str) -> str:
    """The page of the site, or its file, that a path in the repository has."""
    if target in REPOSITORY_PAGES:
        return REPOSITORY_PAGES[target]
    if target.startswith("docs/") and (ROOT / target).is_file() and not target.endswith(".py"):
        return target.removeprefix("docs/")
    return f"source/{target}.md"


def _resolve(link: str, origin: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))


def _links(markdown: str, origin: str) -> set[str]:
    """The paths in the repository that a page links."""
    found = set[str]()
    _outside_fences(markdown, lambda text: found.update(m[2] for m in _LINK.finditer(text)) or "")
    return {_resolve(link, origin) for link in found}


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Changes the text of a page, and leaves its programs as they are."""
    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def _source_page(target: str) -> str:
    """A file as a page, or the list of what a folder has."""
    path = ROOT / target
    head = f"---\nsearch:\n  exclude: true\ntitle: {target}\n---\n# {target}\n\n"
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if not each.name.startswith((".", "_")))
        return head + "\n".join(f"- `{name}`" for name in names) + "\n"
    language = _LANGUAGES.get(path.suffix, "text")
    return f"{head}`````{language}\n{path.read_text('utf-8')}\n`````\n"


@cache
def public_names() -> tuple[tuple[str, griffe.Object], ...]:
    """Every public name, by the path under which people import it."""
    loader = griffe.GriffeLoader(search_paths=[str(ROOT)])
    for package in ("disco_client", "disco_server"):
        loader.load(package)
    loader.resolve_aliases(implicit=False, external=False)
    found: list[tuple[str, griffe.Object]] = []
    for package in PACKAGES:
        module = loader.modules_collection[package]
        extra = EMBEDDED if package == "disco_client" else ()
        for name in (*(str(each) for each in module.exports or ()), *extra):
            if not name.startswith("_"):
                thing = module.members[name]
                found.append((f"{package}.{name}", _target(thing)))
    return tuple(found)


def _target(thing: griffe.Object | griffe.Alias) -> griffe.Object:
    return thing.final_target if isinstance(thing, griffe.Alias) else thing


def _documented(name: str, thing: griffe.Object) -> Iterator[tuple[str, bool]]:
    """A name and, of a class, its public methods, each with whether it has a docstring."""
    yield name, thing.has_docstring
    if thing.is_class:
        for member in thing.members.values():
            if member.is_function and not member.name.startswith("_"):
                yield f"{name}.{member.name}", member.has_docstring
