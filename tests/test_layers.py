"""The package's layers: a file imports only from files of earlier layers, and takes no other file's private names."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ms_lossscale"

# A row is a layer: its files may import from the rows above. A file of the package is in exactly one row.
LAYERS = (
    ("_errors", "_versions"),
    ("rule", "convertible", "misuse", "compiled", "host_pass", "host_state"),
    ("count",),
    ("update_cell",),
    ("manager_state", "stuck"),
    ("watch", "guard"),
    ("manager", "gradients", "scale_argument", "overflow.values", "clip", "accumulate",
     "restore"),
    ("dynamic_manager", "overflow.detector"),
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


def test_detectors_know_no_scale():
    for name in FILES:
        if name.startswith("overflow."):
            files = {file for file, _ in imports_of(FILES[name].read_text(encoding="utf-8"))}
            detectors = {file for file in FILES if file.startswith("overflow.")}
            assert files <= {"_errors", "_versions", "compiled", "host_pass", *detectors}, name


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
