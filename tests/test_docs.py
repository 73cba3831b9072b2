"""README, docs_en, docs_zh and the docstrings: every example runs, and both languages say what the code says."""

import contextlib
import doctest
import importlib
import inspect
import io
import re
import sys
import types

import pytest
from docs_source import (
    ROOT,
    api_entries,
    docstring_entry,
    fences,
    headings,
    links,
    numbers,
    shape,
    spans,
    table_names,
    table_shapes,
)

import ms_lossscale

# Other tests derive classes from MindSpore's step, which patch() warns of.
pytestmark = [pytest.mark.filterwarnings("ignore:Derived from MindSpore"),
              pytest.mark.filterwarnings("ignore::ms_lossscale.UncheckedUpdateWarning")]

EN, ZH = ROOT / "docs_en", ROOT / "docs_zh"
PAGES = sorted(str(path.relative_to(EN)) for path in EN.rglob("*.md") if "_build" not in path.parts)
# By language: the English changelog is the repository's own, which its page includes.
SOURCES = {page: (ROOT / "CHANGELOG.md" if page == "changelog.md" else EN / page, ZH / page) for page in PAGES}
API_NAMES = list(ms_lossscale.__all__)
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
         *(tree / page for tree in (EN, ZH) for page in PAGES)]
RUNNABLE = [path for path in (ROOT / "README.md", *(EN / page for page in PAGES))
            if any(fence.language == "python" and fence.runs for fence in fences(path))]
IDS = [str(path.relative_to(ROOT)) for path in RUNNABLE]


def public_methods(cls):
    """Return {name: (function, signature as called)} of the methods that this package defines and describes, sorted."""
    found = {}
    for base in reversed(cls.__mro__):
        if base.__module__.split(".")[0] == "ms_lossscale":
            found.update({name: method_of(value) for name, value in vars(base).items()
                          if not name.startswith("_") and method_of(value)[0] is not None})
    return dict(sorted(found.items()))


def method_of(value):
    """Return (function, signature as called), or (None, None) for what is no method of this package with a text."""
    function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    if not inspect.isfunction(function) or not function.__doc__:
        return None, None
    if hasattr(function, "__wrapped__"):  # MindSpore's own method, wrapped
        return None, None
    return function, inspect.signature(function) if isinstance(value, staticmethod) else without_self(function)


def code_objects():
    """Return {name as the API pages spell it: (object, signature)} of all public names and their methods."""
    found = {}
    for name in API_NAMES:
        value = getattr(ms_lossscale, name)
        found[f"ms_lossscale.{name}"] = value, signature_of_call(value)
        if inspect.isclass(value):
            found.update({f"ms_lossscale.{name}.{method}": described
                          for method, described in public_methods(value).items()})
    return found


def signature_of_call(value):
    if not inspect.isclass(value):
        return inspect.signature(value)
    return without_self(value.__init__) if inspect.isfunction(value.__init__) else inspect.Signature()


def without_self(function):
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


CODE = code_objects()


# Examples run.

@pytest.mark.parametrize("page", RUNNABLE, ids=IDS)
def test_the_python_blocks_of_a_page_run_and_print_what_it_shows(page, mode, tmp_path, monkeypatch):
    # MindSpore reads the source of what it compiles, and looks names up in sys.modules: lines keep their numbers.
    blocks = [fence for fence in fences(page) if fence.language == "python" and fence.runs]
    script = tmp_path / f"{page.stem}_blocks.py"
    lines = [""] * len(page.read_text(encoding="utf-8").splitlines())
    for block in blocks:
        lines[block.line:block.line + len(block.lines)] = block.lines
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    module = types.ModuleType(f"page_{page.stem}")
    module.__file__ = str(script)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * block.line + "\n".join(block.lines) + "\n", str(script), "exec"), vars(module))
        shown, got = block.output, printed.getvalue()
        same = doctest.OutputChecker().check_output(shown, got, doctest.ELLIPSIS)
        assert same, f"{page.name}, line {block.line}: shown\n{shown}\nprinted\n{got}"


@pytest.mark.parametrize("name", API_NAMES)
def test_the_examples_of_a_docstring_run(name, mode):
    value = getattr(ms_lossscale, name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report = io.StringIO()
    tests = [test for test in doctest.DocTestFinder(recurse=True).find(value, name, globs={}) if test.examples]
    for test in tests:
        runner.run(test, out=report.write)
    assert runner.failures == 0, report.getvalue()
    assert tests or name == "LossScaleManager" or name.endswith("Warning"), "no example"


# Names.

def test_the_tables_of_names_list_exactly_the_public_names():
    for page in (ROOT / "README.md", EN / "api" / "index.md", ZH / "api" / "index.md"):
        assert sorted(table_names(page, "Name" if ZH not in page.parents else "名称")) == sorted(API_NAMES), page


def test_every_public_name_has_one_api_page_in_each_language():
    for tree in (EN, ZH):
        pages = {path.stem for path in (tree / "api").glob("*.rst")}
        assert pages == {f"ms_lossscale.{name}" for name in API_NAMES}, tree.name


@pytest.mark.parametrize("name", API_NAMES)
def test_an_english_api_page_shows_the_docstring(name):
    kind = "autoclass" if inspect.isclass(getattr(ms_lossscale, name)) else "autofunction"
    title = f"ms_lossscale.{name}"
    page = (EN / "api" / f"{title}.rst").read_text(encoding="utf-8")
    assert page == f"{title}\n{'=' * len(title)}\n\n.. {kind}:: {title}\n"


# The docstrings say what the code takes.

@pytest.mark.parametrize("name", sorted(CODE))
def test_a_docstring_names_every_parameter(name):
    value, signature = CODE[name]
    entry = docstring_entry(value)
    kinds = inspect.Parameter
    by_place = [p.name for p in signature.parameters.values() if p.kind in (kinds.POSITIONAL_OR_KEYWORD,
                                                                            kinds.POSITIONAL_ONLY)]
    by_name = [p.name for p in signature.parameters.values() if p.kind is kinds.KEYWORD_ONLY]
    # *inputs of a Cell stand under Inputs, those of a function under Args.
    starred = [p.name for p in signature.parameters.values() if p.kind is kinds.VAR_POSITIONAL]
    assert entry.names["Args"] in (by_place, by_place + starred)
    if not any(p.kind is kinds.VAR_KEYWORD for p in signature.parameters.values()):
        assert entry.names["Keyword Args"] == by_name


@pytest.mark.parametrize("name", sorted(CODE))
def test_a_docstring_states_every_default(name):
    value, signature = CODE[name]
    stated = docstring_entry(value).defaults
    for parameter in signature.parameters.values():
        if parameter.default is not inspect.Parameter.empty and name.count(".") == 1:
            assert evaluated(stated.get(parameter.name, "missing")) == parameter.default, parameter.name


def evaluated(text):
    try:
        return eval(text, {"__builtins__": {}}, {})
    except (NameError, SyntaxError):
        return text


# Both languages agree.

def test_both_languages_have_the_same_files():
    trees = [{path.relative_to(tree): path.read_bytes() if path.suffix == ".png" else None for path in tree.rglob("*")
              if path.suffix in (".md", ".rst", ".png", ".svg") and "_build" not in path.parts} for tree in (EN, ZH)]
    assert trees[0] == trees[1]


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_of_a_page_show_the_same_code(page):
    english, chinese = ([(fence.language, without_comments(fence.lines), fence.output) for fence in fences(path)
                         if not fence.language.startswith("{")] for path in SOURCES[page])
    assert english == chinese


def without_comments(lines):
    """Comments may be translated; the code may not differ."""
    return [re.sub(r"(^|\s+)# .*$", "", line) for line in lines if not line.lstrip().startswith("#")]


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_of_a_page_have_the_same_outline(page):
    english, chinese = (([level for level, _ in headings(path)], table_shapes(path), links(path), shape(path))
                        for path in SOURCES[page])
    assert english == chinese


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_of_a_page_name_the_same_things_and_numbers(page):
    english, chinese = SOURCES[page]
    assert spans(english) == spans(chinese)
    assert numbers(english) == numbers(chinese)


@pytest.mark.parametrize("name", API_NAMES)
def test_the_chinese_api_page_has_the_methods_of_the_code(name):
    listed = list(api_entries(ZH / "api" / f"ms_lossscale.{name}.rst"))
    assert listed == [full for full in CODE if full == f"ms_lossscale.{name}"
                      or full.startswith(f"ms_lossscale.{name}.")]


@pytest.mark.parametrize("name", sorted(CODE))
def test_the_chinese_api_text_has_the_signature_of_the_code(name):
    def parts(signature):
        return [(p.name, p.kind, p.default) for p in signature.parameters.values()]
    assert parts(chinese(name).signature) == parts(CODE[name][1])


@pytest.mark.parametrize("name", sorted(CODE))
def test_the_chinese_api_text_has_the_entries_of_the_docstring(name):
    ours, docstring = chinese(name), docstring_entry(CODE[name][0])
    assert ours.names == docstring.names
    assert ours.types == docstring.types
    assert ours.defaults == docstring.defaults
    assert ours.platforms == docstring.platforms


@pytest.mark.parametrize("name", sorted(CODE))
def test_the_chinese_api_text_names_the_same_things(name):
    """A sentence that one language lacks mostly names something."""
    ours, docstring = chinese(name), docstring_entry(CODE[name][0])
    assert ours.spans == docstring.spans
    assert ours.facts == docstring.facts
    assert ours.returned == docstring.returned


@pytest.mark.parametrize("name", sorted(CODE))
def test_the_chinese_api_text_has_the_examples_of_the_docstring(name):
    assert chinese(name).examples == docstring_entry(CODE[name][0]).examples


def chinese(name):
    page = ".".join(name.split(".")[:2])
    entries = api_entries(ZH / "api" / f"{page}.rst")
    assert name in entries, f"{name} is not described"
    return entries[name]


# The pages themselves.

def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) < 60


def test_the_readme_marks_its_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for mark, last in (("demo command", "-m ms_lossscale demo"), ("test command", "-m pytest")):
        found = re.findall(rf"<!-- {mark} -->\n```\w*\n(.*)\n```\n", text)
        assert len(found) == 1 and found[0].endswith(last), mark


@pytest.mark.parametrize("path", TEXTS, ids=[str(path.relative_to(ROOT)) for path in TEXTS])
def test_no_relative_link_is_broken(path):
    for target in links(path):
        if "://" not in target and not target.startswith("mailto:"):
            file, _, anchor = target.partition("#")
            assert (path.parent / file).exists() if file else True, target
            if anchor:
                slugs = {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
                         for _, text in headings(path.parent / file if file else path)}
                assert anchor in slugs, target


def test_every_command_of_the_texts_exists():
    commands = importlib.import_module("ms_lossscale.__main__").COMMANDS
    for path in TEXTS:
        for command in re.findall(r"-m ms_lossscale (\w+)", path.read_text(encoding="utf-8")):
            assert command in commands, f"{path.name}: {command}"
