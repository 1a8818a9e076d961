"""Configuration of Sphinx, which builds the site from the Markdown files of this repository.

    sphinx-build -W -n -b html -c docs . build/site

The sources are README.md, CONTRIBUTING.md, CHANGELOG.md, docs and the READMEs of examples and notebooks. The folder of
sources is that of the repository, so that a link that works in a checkout works on the site too.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tfdist  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "tfdist"
copyright = "the authors of tfdist"
version = release = tfdist.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/README.md", "notebooks/README.md"]
exclude_patterns = [".*", "build", "dist", "tests", "tfdist", "benchmarks", "docs/templates", "docs/static"]
templates_path = [str(ROOT / "docs" / "templates")]  # autosummary takes relative paths from the folder of sources
nitpicky = True

# Markdown without extensions of Sphinx, and anchors of headings as GitHub makes them.
myst_heading_anchors = 4

# The pages of packages are made from templates/autosummary/module.rst, with the names of `__all__`.
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
# The packages of extras whose sub-packages are documented, if they are not installed.
autodoc_mock_imports = [room for room in tfdist._ROOMS_OF_EXTRAS if importlib.util.find_spec(room) is None]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
default_role = "code"
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Two kinds of types have no page: those of other packages, whose references would have to be fetched from the network,
# and those of tfdist that are not public names, such as tfdist.checkpoint.part.Part.
nitpick_ignore_regex = [
    ("py:.*", r"(tf|tensorflow|keras|tf_keras|ray|np|numpy|absl|flags|collections|typing|pathlib|os)\..*"),
    ("py:.*", r"tfdist\.\w+\.\w+\..*|Path|ScalingConfig"),
]
# What the template knows: the packages, and names of which a second package has the description.
autosummary_context = {
    "packages": [*tfdist._ROOMS, *tfdist._ROOMS_OF_EXTRAS],
    "homes": {
        "tfdist.AllReduceOptions": "tfdist.allreduce.AllReduceOptions",
        "tfdist.create_strategy": "tfdist.strategies.create_strategy",
        "tfdist.launch.Task": "tfdist.cluster.Task",
    },
}

html_theme = "furo"
html_title = "tfdist"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# The first page is docs/index.html, to which index.html leads.
html_additional_pages = {"index": "first.html"}


def remove_pages_of_packages(app: Sphinx) -> None:
    """Removes the generated pages, so that a package that is gone has no page."""
    shutil.rmtree(ROOT / "docs" / "api", ignore_errors=True)


def show_programs(app: Sphinx, page: str, source: list[str]) -> None:
    """Appends the programs to the page of examples, and makes links to them links within the page."""
    if page != "examples/README":
        return
    for name in re.findall(r"\]\((\w+\.py)\)", source[0]):
        source[0] = source[0].replace(f"]({name})", f"](#{name.replace('.', '')})")
        source[0] += f"\n## {name}\n\n```python\n{(ROOT / 'examples' / name).read_text()}```\n"


def skip_overrides(app: Sphinx, kind: str, name: str, value: Any, skip: bool, options: object) -> bool | None:
    """Leaves out methods that a base class has too: it describes them, or Keras and tfdist call them."""
    method = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
    module = sys.modules.get(getattr(method, "__module__", None) or "")
    owner = getattr(module, getattr(method, "__qualname__", "").rpartition(".")[0], None)
    return True if isinstance(owner, type) and any(hasattr(base, name) for base in owner.__bases__) else None


def setup(app: Sphinx) -> None:
    """Connects the functions of this file to Sphinx."""
    # Before autosummary makes the pages.
    app.connect("builder-inited", remove_pages_of_packages, priority=1)
    app.connect("source-read", show_programs)
    app.connect("autodoc-skip-member", skip_overrides)
