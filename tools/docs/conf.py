"""Builds a site from docs/: `python -m sphinx -c tools/docs -W --keep-going . build/docs`.

The source folder is the repository, so that links to examples work on the site as well. Warnings,
which `-W` turns into errors, are about links, anchors and names that do not exist. Neither building
nor reading the site needs the network.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from plaunch import __version__

# Collections of Python's garbage, which go through all documents, take a third of the build.
gc.set_threshold(1_000_000)

project = "plaunch"
author = "The plaunch developers"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "blocks",
    "names",
    "navigation",
]
root_doc = "docs/index"
include_patterns = ["README.md", "docs/*.md", "benchmarks/README.md", "examples/*/README.md"]
exclude_patterns = [".*", "build", "core", "dist", "plugins", "tests"]

# Anchors as GitHub generates them for headings, down to `####`.
myst_heading_anchors = 4
# Public names of plaunch in signatures must be on the site. Other names are not: those of Python,
# of torch, and of internal modules.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!plaunch\.|plaunch_testing\.conformance\.\w+$).*"),
    (r"py:.*", r"plaunch\.\w+\.\w+\..*"),
    (r"py:.*", r"plaunch\..*\b[A-Z]"),  # type variables
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# A button copies commands from console blocks, without prompts and output.
copybutton_prompt_text = "$ "

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"plaunch {release}"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_use_index = True
# Redirects to the start page, which is in a folder.
html_extra_path = ["start/index.html"]
html_theme_options = {"top_of_page_buttons": []}
