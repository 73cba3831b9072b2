"""Reads Markdown pages, Chinese API pages and docstrings into what test_docs.py compares."""

import doctest
import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Sections of a docstring, and what the Chinese pages call them.
SECTIONS = {"Args": "参数", "Keyword Args": "关键字参数", "Inputs": "输入", "Outputs": "输出", "Attributes": "属性",
            "Returns": "返回", "Raises": "异常", "Supported Platforms": "支持平台", "Examples": "样例"}
ENGLISH = {chinese: english for english, chinese in SECTIONS.items()}
# Dtypes, modes and numbers, which are spelled alike in both languages.
FACT = r"(?<![\w.`])(?:bfloat16|float16|float32|int32|int64|bool|NaN|GRAPH|PYNATIVE|\d+\*\*-?\d+|\d[\d.]*\d)(?![\w`])"
NAMED = ("Args", "Keyword Args", "Inputs", "Outputs", "Attributes", "Raises")


@dataclass
class Fence:
    """A fenced block: where it starts, what is in it, what follows it as ```text, and whether it is to be run."""

    language: str
    line: int
    lines: list
    output: str = ""
    runs: bool = True


def fences(path):
    """Return the fenced blocks of a page. A block after ``<!-- not run: why -->`` is shown only."""
    found, lines, number = [], path.read_text(encoding="utf-8").splitlines(), 0
    last_end = None
    while number < len(lines):
        opened = re.match(r"(`{3,})(\S*)", lines[number])
        if not opened:
            number += 1
            continue
        end = next(i for i in range(number + 1, len(lines)) if lines[i] == opened[1])
        fence = Fence(opened[2], number + 1, lines[number + 1:end],
                      runs=not (number and lines[number - 1].startswith("<!-- not run: ")))
        follows = last_end is not None and not any(line.strip() for line in lines[last_end + 1:number])
        if fence.language == "text" and follows and found[-1].language in ("python", "bash"):
            found[-1].output = "".join(f"{line}\n" for line in fence.lines)
        found.append(fence)
        last_end, number = end, end + 1
    return found


def prose(path):
    """Return the lines of a page outside its fenced blocks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    inside = {i for fence in fences(path) for i in range(fence.line - 1, fence.line + len(fence.lines) + 1)}
    return [line for i, line in enumerate(lines) if i not in inside]


def headings(path):
    """Return [(level, text)]."""
    return [(len(mark), text) for mark, text in
            (re.match(r"(#+) (.*)", line).groups() for line in prose(path) if re.match(r"#+ ", line))]


def links(path):
    """Return the targets of links and pictures, in order."""
    return re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose(path)))


def spans(path):
    """Return the set of inline code spans; inside, line ends are spaces."""
    return {" ".join(span.split()) for span in re.findall(r"`([^`]+)`", "\n".join(prose(path)))}


def numbers(path):
    """Return the set of numbers of two or more digits outside code, links and names."""
    text = re.sub(r"`[^`]+`|\]\([^)]*\)", " ", "\n".join(prose(path)))
    return {number.replace(",", "") for number in re.findall(r"(?<![\w.])\d[\d,.]*\d(?!\w*[A-Za-z])", text)}


def table_shapes(path):
    """Return (rows, columns) of each table."""
    shapes, rows = [], []
    for line in [*prose(path), ""]:
        if line.startswith("|"):
            rows.append(line.count("|") - line.count(r"\|") - 1)
        elif rows:
            shapes.append((len(rows), rows[0]))
            rows = []
    return shapes


def shape(path):
    """Return the kinds of blocks of a page in order: h a heading, p a paragraph, - an item, t a table, f a fence."""
    kinds, before = "", ""
    fenced = {fence.line - 1 for fence in fences(path)}
    inside = {i for fence in fences(path) for i in range(fence.line, fence.line + len(fence.lines) + 1)}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if number in fenced:
            kinds += "f"
        elif number in inside or line.startswith("<"):
            line = ""
        elif re.match(r"#+ ", line):
            kinds, line = kinds + "h", ""
        elif re.match(r"- |\d+\. ", line):
            kinds += "-"
        elif line and not before:
            kinds += "t" if line.startswith("|") else "p"
        before = line
    return kinds


def table_names(path, heading):
    """Return the code spans in the first column of the tables whose first heading is `heading`."""
    names, inside = [], False
    for line in prose(path):
        if line.startswith(f"| {heading} |"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside:
            names += re.findall(r"`(\w+)`", line.split("|")[1])
    return names


@dataclass
class Entry:
    """What both languages must say alike about a class, a method or a function."""

    signature: inspect.Signature = None
    names: dict = field(default_factory=lambda: {section: [] for section in NAMED})
    defaults: dict = field(default_factory=dict)
    types: list = field(default_factory=list)
    spans: set = field(default_factory=set)
    facts: set = field(default_factory=set)
    returned: list = field(default_factory=list)
    platforms: list = field(default_factory=list)
    examples: list = field(default_factory=list)


def docstring_entry(value):
    """Read a docstring in MindSpore's sections."""
    text = inspect.getdoc(value) or ""
    sections = split_sections(text, r"^([A-Z][A-Za-z ]+):$", dict.fromkeys(SECTIONS))
    return entry_of(text, sections, r"^\*{0,2}([\w\\*, ]+?)\*{0,2}(?: \(.*?\))?: ?(.*)$", r"Default: ``(.+?)``")


def api_entries(path):
    """Read a Chinese API page: {full name: Entry}."""
    found, owner = {}, None
    parts = re.split(r"^( *)\.\. py:(class|method|function):: (.+)$", path.read_text(encoding="utf-8"), flags=re.M)
    for _, kind, declared, body in zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4]):
        name, _, parameters = declared.partition("(")
        full = f"{owner}.{name}" if kind == "method" else name
        owner = name if kind == "class" else owner
        text = inspect.cleandoc(body)
        entry = entry_of(text, split_sections(text, r"^(\w+)：$", ENGLISH), None, r"默认值：``(.+?)``")
        entry.signature = signature_of(parameters.rstrip()[:-1] if parameters else "")
        found[full] = entry
    return found


def signature_of(parameters):
    """Return the signature that a page writes, its defaults evaluated."""
    scope = {}
    exec(f"def function({parameters}): pass", {"__builtins__": {}}, scope)
    return inspect.signature(scope["function"])


def split_sections(text, header, known):
    """Return {English section: its text without the indent}."""
    found, section = {}, None
    for line in text.splitlines():
        match = re.match(header, line)
        if match and match[1] in known:
            section = known[match[1]] or match[1]
            found[section] = []
        elif line and not line.startswith(" "):
            section = None
        elif section:
            found[section].append(line)
    return {name: inspect.cleandoc("\n".join(lines)) for name, lines in found.items()}


def entry_of(text, sections, item, default):
    """Gather what is compared; `item` matches a docstring's ``name (type): text``, both know ``- **name** (type)``."""
    entry = Entry()
    described = re.split(r"^(?:Examples:|样例：)$", text, flags=re.M)[0]
    entry.spans = {" ".join(span.split()) for span in re.findall(r"(?::\w+:)?``?[^`]+``?", described)}
    entry.facts = set(re.findall(FACT, described.replace("\\", "")))
    entry.returned = re.findall(r"^(bool|dict|float|int|str|\w+Cell|\w+Manager)\b", sections.get("Returns", ""))
    declared = re.findall(r"^ +(?:- \*\*)?([\w\\*]+?)(?:\*\*)? \(([^)]+\)?)\)(?=:| -)", described, flags=re.M)
    entry.types = [(name, kind.replace("，可选", ", optional")) for name, kind in declared]
    for section in NAMED:
        for text in items(sections.get(section, ""), item):
            name, rest = text
            entry.names[section].append(name)
            stated = re.search(default, rest, flags=re.S)
            if stated and section in ("Args", "Keyword Args"):
                entry.defaults[name] = stated[1]
    entry.platforms = re.findall(r"``(\w+)``", sections.get("Supported Platforms", ""))
    parsed = doctest.DocTestParser().get_examples(sections.get("Examples", "") + "\n")
    entry.examples = [(re.sub(r"\s*# .*", "", example.source), example.want) for example in parsed]
    return entry


def items(text, item):
    """Return [(name, text)] of a section's entries."""
    found = []
    for line in text.splitlines():
        bullet = re.match(r"- \*\*([\w\\* ]+)\*\*(.*)$", line)
        match = bullet or (item and not line.startswith((" ", "-")) and re.match(item, line))
        if match:
            found.append([match[1].replace("\\", "").strip(), match[2]])
        elif found:
            found[-1][1] += " " + line.strip()
    return [tuple(entry) for entry in found]
