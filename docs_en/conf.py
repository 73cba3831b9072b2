"""Sphinx settings of the English pages; docs_zh/conf.py starts from them."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("GLOG_v", "3")

import ms_lossscale  # noqa: E402 (found through the path above)

project = "ms_lossscale"
author = "The ms_lossscale authors"
release = version = ms_lossscale.__version__
language = "en"

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True
# MindSpore's names and the words of a type ("float", "optional") have no page here; our own names must resolve.
nitpick_ignore_regex = [(r"py:.*", r"(?!ms_lossscale).*")]

napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Inputs", "Outputs", "Supported Platforms"]
autodoc_default_options = {"members": True, "inherited-members": "Cell,Model,TrainOneStepCell"}
autodoc_typehints = "none"
autodoc_inherit_docstrings = False  # or nn.Cell's own text appears at every construct

html_theme = "furo"
html_title = "ms_lossscale"
html_copy_source = False
templates_path = [str(ROOT / "docs_en" / "_templates")]
# Where the other language lies, seen from this one's first page. A site lays it out with -A other_root=../zh
html_context = {"other_root": "../../docs_zh/_build", "other_language": "中文", "other_code": "zh"}

# Powers of two as people write them.
POWERS = {"16777216": "2**24", "8.507059173023462e+37": "2**126", "1.1754943508222875e-38": "2**-126"}


def write_powers(app, what, name, obj, options, signature, return_annotation):
    """Show the defaults of a signature as the texts name them."""
    for number, power in POWERS.items():
        signature = signature.replace(f"={number}", f"={power}") if signature else signature
    return signature, return_annotation


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", write_powers)
