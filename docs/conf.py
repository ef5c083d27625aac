"""Settings of the documentation site, which `ci/docs` builds. Nothing here needs the network."""

import importlib.util
import sys
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support import helps  # noqa: E402

import pypartial  # noqa: E402

project = "pypartial"
author = "The pypartial authors"
copyright = author
version = release = pypartial.__version__

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc"]
exclude_patterns = ["**/README.md"]
nitpicky = True
smartquotes = False  # two hyphens are two hyphens
highlight_language = "none"  # of indented blocks: they are commands and their output

# ---- pages --------------------------------------------------------------------------------------

myst_heading_anchors = 4

# Files of the repository that pages link to, and the pages that they are here.
PAGES = {"../README.md": "index.md", "../bench/README.md": "benchmarks.md"}

# ---- docstrings ---------------------------------------------------------------------------------

default_role = "py:obj"  # what stands in backticks: `find` below
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name the types
numpydoc_show_class_members = False

# Whose docstrings are shown; they may name each other's contents without the module.
MODULES = (
    *("pypartial", "pypartial.groups", "pypartial.methods", "pypartial.topology"),
    "pypartial.torch",
)

# ---- HTML ---------------------------------------------------------------------------------------

html_theme = "furo"
pygments_dark_style = "github-dark"  # furo's own underlines names as if they were links
html_title = f"pypartial {release}"
html_static_path = ["style"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_use_index = True


class CommandHelp(SphinxDirective):
    """What a command of this version prints for ``--help``: ``{command-help} pypartial info``."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Ask the command."""
        command = self.arguments[0]
        try:
            text = helps.help_of(command)
        except (OSError, RuntimeError) as error:
            logging.getLogger(__name__).warning("%s", error, location=self.get_location())
            return []
        wide = max(map(len, text.splitlines())) > helps.WIDTH + 5
        return [nodes.literal_block(text, text, language="none", classes=["wide"] if wide else [])]


def find(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    """Find what a docstring has in backticks and Sphinx does not find.

    That is a name of another module of the package, a method of a request, a field of a data class,
    a parameter (lower case, no dot), or a name of another package, to which there is no link.
    Anything else stays a warning.
    """
    if node.get("reftype") != "obj":
        return None
    name = node["reftarget"]
    package, dot, field = name.partition(".")
    targets = [f"{module}.{name}" for module in MODULES]
    for owner in (pypartial.Request, pypartial.AllreduceRequest):
        if name[0].isupper() and name in vars(owner):
            targets.append(f"pypartial.{owner.__name__}.{name}")
    for module in MODULES:
        owner = getattr(sys.modules.get(module), package, None)
        if field in getattr(owner, "__dataclass_fields__", ()):
            targets.append(f"{module}.{package}")
    domain, place = env.domains.python_domain, node["refdoc"]
    for target in targets:
        found = domain.resolve_xref(env, place, app.builder, "obj", target, node, text)
        if found is not None:
            return found
    is_parameter = (name.isidentifier() and name.islower()) or name in MODULES
    if is_parameter or (dot and package != "pypartial" and importlib.util.find_spec(package)):
        return nodes.emphasis(text.astext(), text.astext())
    return None


def link_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links to files that are pages here lead to these."""
    for file, name in PAGES.items():
        source[0] = source[0].replace(f"]({file}", f"]({name}")


def hide_constructor(
    app: Sphinx, what: str, name: str, found: object, options: object, *_: object
) -> tuple[str, str] | None:
    """Show no arguments of classes of which the library makes the objects."""
    made_by_library = isinstance(found, type) and issubclass(found, pypartial.Request)
    return ("", "") if made_by_library else None


def setup(app: Sphinx) -> None:
    """Add the directive of docs/commands.md, and what links and docstrings need."""
    app.add_directive(helps.DIRECTIVE, CommandHelp)
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("source-read", link_pages)
    app.connect("missing-reference", find)
