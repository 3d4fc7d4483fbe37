"""The site that ``make docs`` builds: the repository's pages, and an API from docstrings.

The pages stay where they are read on a code host. So the source is the whole checkout, and README
is the start page. A link to a file that is no page becomes a download.
"""

import importlib.metadata
import shutil
from pathlib import Path

from sphinx.application import Sphinx

project = "tilecast"
copyright = "the tilecast authors, Apache-2.0"
release = importlib.metadata.version(project)
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "kernels/EXPERIMENTS.md", "models/EXPERIMENTS.md"]
exclude_patterns = ["build", "dist", ".*"]
myst_heading_anchors = 3
default_role = "literal"  # of single backticks in docstrings
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False

CONTENTS = """
```{toctree}
:caption: Using it
:hidden:

docs/first-selection
docs/inductor
docs/variables
docs/invariant
docs/when-not
docs/train
docs/api
```

```{toctree}
:caption: Knowing more
:hidden:

docs/results
docs/how-it-works
docs/upstream
kernels/EXPERIMENTS
models/EXPERIMENTS
```

```{toctree}
:caption: The project
:hidden:

CONTRIBUTING
SECURITY
CHANGELOG
```
"""


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the start page the contents of the site, which a code host does not show."""
    if page == root_doc:
        source[0] += CONTENTS


def copy_start_page(app: Sphinx, failure: Exception | None) -> None:
    """Serve the start page under the name that servers look for, too."""
    if not failure:
        folder = Path(app.outdir)
        shutil.copy(folder / f"{root_doc}.html", folder / "index.html")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("build-finished", copy_start_page)
