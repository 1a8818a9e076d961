"""The site of the documents is built without a warning, has every public name with its example, and no dead link."""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import tests.test_public_names as public
from tests.processes import ROOT, run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the site as CONTRIBUTING.md says, in another folder."""
    folder = tmp_path_factory.mktemp("site")
    command = re.search(r"sphinx-build (-W -n -b html -c docs \.) build/site", (ROOT / "CONTRIBUTING.md").read_text())
    assert command, "expected the command that builds the site in CONTRIBUTING.md"
    built = run([sys.executable, "-m", "sphinx", *command[1].split(), str(folder)], cwd=ROOT, deadline_seconds=300)
    assert built.code == 0, built.text
    return folder


class _Page(HTMLParser):
    """The anchors of a page, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.targets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id":
                self.anchors.add(value or "")
            elif name in ("href", "src"):
                self.targets.append(value or "")


def _well_formed(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and re.fullmatch(r"[\w.-]+\.\w+(:\d+)?", parts.netloc) is not None


def dead_links(folder: Path) -> Iterator[str]:
    """Yields the links of the pages in a folder that lead to no file or anchor, and URLs that are not well-formed."""
    pages = {page: _Page(page.read_text()) for page in sorted(folder.rglob("*.html"))}
    for page, content in pages.items():
        for target in content.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                dead = not _well_formed(target)
            else:
                file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
                dead = not file.is_file() or (file in pages and unquote(parts.fragment) not in pages[file].anchors)
            if dead or re.search(r"\s", target):
                yield f"{page.relative_to(folder)}: {target}"


def test_there_is_no_dead_link(site: Path) -> None:
    assert list(dead_links(site)) == []


def test_a_dead_link_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(
        '<p id="there"></p><a href="#there">x</a><a href="two.html#that">x</a><a href="https://keras.io/api">x</a>'
        '<a href="#none">x</a><a href="two.html#none">x</a><a href="three.html">x</a><img src="a.png">'
        '<a href="https:/keras.io">x</a><a href="htp://keras.io">x</a><a href="https://keras.io/a b">x</a>'
    )
    (tmp_path / "two.html").write_text('<p id="that"></p><a href="one.html">x</a>')
    found = [link.removeprefix("one.html: ") for link in dead_links(tmp_path)]
    assert found == [
        *("#none", "two.html#none", "three.html", "a.png"),
        *("https:/keras.io", "htp://keras.io", "https://keras.io/a b"),
    ]


def _inventory(site: Path) -> dict[str, str]:
    """Returns the page and anchor of each Python name, as `page#anchor`."""
    text = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    entries = re.findall(r"^(\S+) py:\w+ \S+ (\S+) .*$", text, re.M)
    return {name: place.replace("$", name) for name, place in entries}


NAMES = [".".join(name) for name in public.public_names()]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_in_the_reference_with_an_example(name: str, site: Path) -> None:
    inventory = _inventory(site)
    assert name in inventory
    page, _, anchor = inventory[name].partition("#")
    text = (site / page).read_text()
    if anchor == f"module-{name}":
        assert "&gt;&gt;&gt; " in text
        return
    begin = text.index(f'id="{anchor}"')
    # The description ends where that of the next name of the package begins.
    begins = [text.find(f'id="{other}"') for other in NAMES if other.rpartition(".")[0] == name.rpartition(".")[0]]
    described = text[begin : min((place for place in begins if place > begin), default=None)]
    if ">The same as <" in re.sub(r"\s+", " ", described):
        home = re.search(r'title="([\w.]+)"', described)
        assert home and home[1] in NAMES and home[1] != name
    elif "See the description at the top of this page." in described:
        top = text[: min(place for place in begins if place > 0)]
        assert "&gt;&gt;&gt; " in top
        assert name.rpartition(".")[2] in top
    else:
        assert "&gt;&gt;&gt; " in described


def test_each_package_has_a_page_with_its_names_in_a_table_at_the_top(site: Path) -> None:
    for package in ["tfdist", *(f"tfdist.{room}" for room in public.ROOMS)]:
        text = (site / "docs" / "api" / f"{package}.html").read_text()
        top = text[: text.index('<dl class="py')]
        for name in (name for name in NAMES if name.rpartition(".")[0] == package):
            if name.rpartition(".")[2] not in public.ROOMS:
                assert f'href="#{name}"' in top


def test_the_index_lists_every_page_of_its_table_of_contents() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    listed = {target.removesuffix(".md") for target in re.findall(r"\]\(([\w./]+\.md)\)", text)}
    assert set(re.findall(r"^.+ <([\w./]+)>$", text, re.M)) <= listed


def test_links_of_notebooks_lead_to_files_of_the_repository_and_anchors_of_the_site(site: Path) -> None:
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(notebook.read_text())["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if urlsplit(target).scheme:
                assert _well_formed(target), target
                continue
            path, _, anchor = target.partition("#")
            file = (notebook.parent / path).resolve() if path else notebook
            assert file.is_file(), target
            if anchor and file.suffix == ".md":
                page = site / file.relative_to(ROOT).with_suffix(".html")
                assert anchor in _Page(page.read_text()).anchors, target
