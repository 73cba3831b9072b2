"""The package's layers: a file imports only from files of earlier layers, and takes no other file's private names."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ms_lossscale"

# A row is a layer: its files may import from the rows above. A file of the package is in exactly one row.
LAYERS = (
    ("_errors", "_versions"),
    ("rule", "convertible", "misuse", "compiled", "host_pass", "host_state", "numpy_operator"),
    ("count",),
    ("update_cell",),
    ("manager_state", "stuck"),
    ("watch", "guard"),
    ("manager", "gradients", "scale_argument", "overflow.values", "accumulate", "restore"),
    ("clip", "dynamic_manager", "overflow.detector"),
    ("overflow.all_finite", "overflow.float_status", "overflow.host", "overflow.is_finite", "overflow.register"),
    ("overflow.table",),
    ("fused", "nested"),
    ("train_step", "finite"),
    ("train_options", "double_unscale", "host_grads", "loss_scale"),
    ("dynamic_loss_scale", "held_scale"),
    ("checkpoint", "get_loss_scale", "joint_step", "model", "scaler"),
    ("conversion", "dynamic_scaler"),
    ("patch",),
    ("reading", "history", "event_file", "gradient_figures", "as_it_was", "first_not_finite"),
    ("monitor_text", "diagnosis", "plot"),
    ("diagnose",),
    ("callback",),
    ("commands.trial", "commands.device_target", "commands.refusals", "commands.workers"),
    ("commands.check", "commands.demo", "commands.plot", "commands.run"),
    ("__main__",),
)
# They hold no code of their own, only names.
FREE = ("__init__", "overflow.__init__", "commands.__init__")
# Only here may a version or a capability of MindSpore be asked for, and only there a chip be named, too.
VERSIONS, CHIPS = "_versions", ("_versions", "overflow.table")
# (importing file, private name): agreed exceptions.
PRIVATE_IMPORTS = set()
LONGEST_FILE = 250


def name_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
LAYER_OF = {name: depth for depth, row in enumerate(LAYERS) for name in row}


def imports_of(source):
    """Return {(file, imported name or None)} of what `source` imports from the package, relative imports refused."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer; write ms_lossscale.<file>"
            module = (node.module or "").split(".")
            if module[0] == "ms_lossscale":
                for alias in node.names:
                    inner = ".".join([*module[1:], alias.name])
                    found.add((inner, None) if inner in FILES else (".".join(module[1:]) or "__init__", alias.name))
        elif isinstance(node, ast.Import):
            found |= {(alias.name.partition(".")[2] or "__init__", None) for alias in node.names
                      if alias.name.split(".")[0] == "ms_lossscale"}
    return found


def private_uses_of(source):
    """Return the private names that `source` takes from other files, by import or as an attribute of a module."""
    modules = {file.rpartition(".")[2] for file, name in imports_of(source) if name is None}
    taken = {name for _, name in imports_of(source) if name and name.startswith("_")}
    for node in ast.walk(ast.parse(source)):
        if (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
                and node.attr.startswith("_") and not node.attr.startswith("__")):
            taken.add(node.attr)
    return taken


def version_tests_of(source):
    """Return what in `source` asks for a version, or for what only some versions of MindSpore have."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    natives = {(alias.asname or alias.name).partition(".")[0] for node in ast.walk(tree) for alias in natives_of(node)}
    return [ast.unparse(node) for node in ast.walk(tree) if is_version(node, parents) or is_probe(node, natives)]


def natives_of(node):
    """Return what `node`, if it is an import, takes from MindSpore."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mindspore":
        return node.names
    return [alias for alias in getattr(node, "names", ()) if isinstance(node, ast.Import)
            and alias.name.split(".")[0] == "mindspore"]


def is_version(node, parents):
    """Whether `node` is a version that is not merely shown, or takes one from elsewhere."""
    if isinstance(node, ast.Attribute) and node.attr in ("__version__", "version_info", "hexversion"):
        return not isinstance(parents[node], (ast.FormattedValue, ast.Dict, ast.Tuple))
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [f"{getattr(node, 'module', '')}.{alias.name}" for alias in node.names]
        return any(re.search(r"importlib[._]metadata|pkg_resources|packaging|__version__", name) for name in names)
    return False


def is_probe(node, natives):
    """Whether `node` asks MindSpore for a name that it may lack."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr", "inspect.signature"):
        return ast.unparse(node.args[0]).partition(".")[0] in natives
    if isinstance(node, ast.Try):
        asked = any(natives_of(inner) for line in node.body for inner in ast.walk(line))
        return asked and not all(isinstance(handler.body[-1], ast.Raise) for handler in node.handlers)
    return isinstance(node, ast.Attribute) and node.attr == "_c_expression"


def chips_of(source):
    """Return the strings in `source` that are the name of an Ascend chip."""
    return {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)
            and isinstance(node.value, str) and re.fullmatch(r"(?i)(ascend)?[_-]?(310|910|950)\w*", node.value)}


def check_layer(name, source):
    for file, _ in imports_of(source):
        if file == "__init__":
            assert name.startswith(("commands.", "__main__")), f"{name} imports the package itself"
            continue
        assert file in LAYER_OF, f"{name} imports {file}, which has no layer"
        assert LAYER_OF[file] < LAYER_OF[name], f"{name} imports {file}, which is not in an earlier layer"


def test_every_file_has_one_layer():
    listed = [name for row in LAYERS for name in row]
    assert len(listed) == len(set(listed))
    assert set(FILES) - set(FREE) <= set(listed), "add the file to LAYERS"


@pytest.mark.parametrize("name", sorted(set(FILES) - set(FREE)))
def test_a_file_imports_only_from_earlier_layers(name):
    check_layer(name, FILES[name].read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_takes_no_private_name_of_another(name):
    taken = private_uses_of(FILES[name].read_text(encoding="utf-8"))
    assert not {use for use in taken if (name, use) not in PRIVATE_IMPORTS}


def test_only_the_monitor_and_the_commands_print():
    printing = {name for name, path in FILES.items() for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if (isinstance(node, ast.Name) and node.id == "print")
                or (isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr"))}
    assert printing - {name for name in FILES if name.startswith("commands.")} == {"callback", "__main__"}


@pytest.mark.parametrize("name", sorted(set(FILES) - {VERSIONS}))
def test_only_one_file_asks_for_a_version_or_a_capability_of_mindspore(name):
    assert version_tests_of(FILES[name].read_text(encoding="utf-8")) == []


def test_the_tests_ask_for_the_version_in_one_file():
    asking = []
    for path in PACKAGE.parent.joinpath("tests").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        asking += [path.stem] * any(is_version(node, parents) for node in ast.walk(tree))
    assert asking == ["mindspore_version"]


def test_only_the_table_of_detectors_and_that_file_name_a_chip():
    naming = [name for name, path in FILES.items() if chips_of(path.read_text(encoding="utf-8"))]
    assert sorted(naming) == sorted(CHIPS)


def test_detectors_know_no_scale():
    for name in FILES:
        if name.startswith("overflow."):
            files = {file for file, _ in imports_of(FILES[name].read_text(encoding="utf-8"))}
            detectors = {file for file in FILES if file.startswith("overflow.")}
            assert files <= {"_errors", "_versions", "compiled", "host_pass", "numpy_operator", *detectors}, name


def test_the_rule_knows_no_mindspore():
    tree = ast.parse(FILES["rule"].read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.split(".")[0] == "mindspore"]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_is_short(name):
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("name, source", [
    ("rule", "from ms_lossscale.update_cell import DynamicLossScaleUpdateCell"),
    ("train_step", "from ms_lossscale import model"),
    ("manager", "import ms_lossscale.train_step"),
    ("manager", "from ms_lossscale import Model"),
    ("gradients", "def late():\n    from ms_lossscale.manager import LossScaleManager"),
])
def test_an_import_rightwards_is_found(name, source):
    with pytest.raises(AssertionError):
        check_layer(name, source)


@pytest.mark.parametrize("source", [
    "from ms_lossscale.model import _scaled",
    "from ms_lossscale import model\nmodel._scaled",
])
def test_a_private_name_is_found(source):
    assert private_uses_of(source) == {"_scaled"}


@pytest.mark.parametrize("source", [
    "import mindspore as ms\nnew = ms.__version__ >= '2.7'",
    "import mindspore\nold = mindspore.__version__.startswith('2.0')",
    "from mindspore import __version__",
    "from mindspore.version import __version__ as version",
    "from importlib.metadata import version",
    "import importlib.metadata",
    "from importlib import metadata\nnew = metadata.version('mindspore') > '2.7'",
    "from packaging.version import Version",
    "import sys\nnew = sys.version_info >= (3, 10)",
    "import mindspore as ms\nif hasattr(ms, 'set_device'):\n    pass",
    "import mindspore as ms\nbf16 = getattr(ms, 'bfloat16', None)",
    "from mindspore import context\nask = hasattr(context, 'get_jit_config')",
    "import mindspore.nn as nn\nhave = hasattr(nn.Cell, 'set_inputs')",
    "import inspect\nfrom mindspore import nn\nnew = inspect.signature(nn.TrainOneStepCell)",
    "try:\n    from mindspore.ops import AllFinite\nexcept ImportError:\n    AllFinite = None",
    "def late():\n    try:\n        import mindspore.graph\n    except (ImportError, AttributeError):\n        pass",
    "import mindspore as ms\nsoc = ms._c_expression.MSContext.get_instance()",
])
def test_a_question_for_a_version_is_found(source):
    assert version_tests_of(source)


@pytest.mark.parametrize("source", [
    "import mindspore as ms\nprint(f'MindSpore {ms.__version__}')",
    "import mindspore as ms\nreport = {'mindspore': ms.__version__}",
    "try:\n    import mindspore\nexcept ImportError:\n    raise ImportError('install it') from None",
    "from mindspore import nn\ndef scale(step):\n    return getattr(step, 'scale_sense', None)",
])
def test_a_version_that_is_shown_and_a_mindspore_that_is_needed_are_no_question(source):
    assert version_tests_of(source) == []


@pytest.mark.parametrize("name", ["910A", "910B", "ascend910", "Ascend910B3", "ascend910_93", "Ascend950", "310P"])
def test_a_name_of_a_chip_is_found(name):
    assert chips_of(f"slow = chip in ({name!r}, 'other')") == {name}
