"""How the documentation is built: `make docs`. Nothing is fetched, and a warning is an error."""

import re
from importlib.metadata import version as installed
from typing import Any

project = "lanelog"
author = "The lanelog authors"
version = release = installed("lanelog")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of signatures: no other project's inventory is loaded

# -- Markdown
myst_enable_extensions = ["attrs_block", "deflist"]
myst_heading_anchors = 3

smartquotes = False  # two hyphens are those of an option

# -- Docstrings: a single backtick is code, as everywhere in the source.
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

# -- Pages
html_theme = "furo"
html_title = "lanelog"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False


_sentences: dict[str, list[str]] = {}


def _keep_sentence(_app: Any, what: str, name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Keep what stands below an attribute: napoleon would take what is before a colon for its type."""
    if what in {"attribute", "property", "data"}:
        _sentences[name] = lines.copy()


def _restore_sentence(_app: Any, _what: str, name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Put it back."""
    lines[:] = _sentences.pop(name, lines)


def _literal_asterisks(_app: Any, _context: Any, lines: list[str]) -> None:
    """Show the asterisk of a pattern as it is: sphinx-click takes help texts for reStructuredText."""
    lines[:] = [re.sub(r"(?<!\*)\*(?!\*)", r"\\*", line) for line in lines]


def setup(app: Any) -> None:
    """Connect what the configuration above cannot say."""
    app.connect("autodoc-process-docstring", _keep_sentence, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", _restore_sentence, priority=600)
    for part in ("description", "options", "arguments", "epilog"):
        app.connect(f"sphinx-click-process-{part}", _literal_asterisks)
