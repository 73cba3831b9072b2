"""Sphinx settings of the English pages; docs_zh/conf.py starts from them."""

import inspect
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
autodoc_default_options = {"members": True, "inherited-members": "BaseException,Cell,Cell_,Model,TrainOneStepCell"}
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


def write_signature(app, what, name, obj, options, signature, return_annotation):
    """Show how a class is called by its own __init__, and numbers as the texts name them."""
    if what == "class" and inspect.isfunction(obj.__init__):
        own = list(inspect.signature(obj.__init__).parameters.values())[1:]
        signature = str(inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in own]))
    if not signature:
        return None
    for number, power in POWERS.items():
        signature = signature.replace(f"={number}", f"={power}")
    return signature, None


def skip_wrapped(app, what, name, obj, skip, options):
    """Leave out what is MindSpore's own method, wrapped."""
    return True if hasattr(obj, "__wrapped__") else None


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", write_signature)
    app.connect("autodoc-skip-member", skip_wrapped)
