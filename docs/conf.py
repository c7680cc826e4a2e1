"""The documentation as a site: ``make site`` builds it from these pages with Sphinx, MyST and Furo."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec

from sphinx.application import Sphinx

REPOSITORY = "https://github.com/streamco/streamco"

project = "streamco"
release = metadata.version("streamco")
copyright = "the streamco maintainers"  # noqa: A001  Sphinx asks for this name
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"streamco {release}"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]
autodoc_typehints = "none"  # the docstrings name units and ranges; a signature with all types is a screen long
autodoc_member_order = "bysource"
# The site needs none of the packages that only some users install; those that are installed are imported.
autodoc_mock_imports = [
    name for name in ("langchain_core", "openai", "opentelemetry", "pydantic", "pydantic_ai") if find_spec(name) is None
]
suppress_warnings = ["ref.python"]  # an error's name leads to two places: api.md has the usual errors, api/errors.md all of them
napoleon_use_param = False
napoleon_use_rtype = False


def link_to_repository(_app: Sphinx, page: str, source: list[str]) -> None:
    """Let links to files outside of docs/ lead into the repository."""
    to_root = "../" * (page.count("/") + 1)
    source[0] = re.sub(rf"\]\({re.escape(to_root)}([^)#]*)(#[^)]*)?\)", rf"]({REPOSITORY}/blob/main/\1\2)", source[0])


def setup(app: Sphinx) -> None:
    """Register the link rule; Sphinx calls this."""
    app.connect("source-read", link_to_repository)
