"""A compiled step as MindSpore's front end leaves it: operators, what each depends on, and the branches of the gate."""

import os
import re
from collections import Counter
from typing import NamedTuple

NODE = re.compile(r"^  %(\d+)\(.*?\) = (\S.*?)\((.*)$")
GRAPH = re.compile(r"^subgraph @(\S+?)\((.*?)\) \{$")
# What only orders, packs or moves; a backend runs no kernel for it that MindSpore's own step would not have.
PLUMBING = {"Depend", "Load", "UpdateState", "MakeTuple", "TupleGetItem", "Partial", "TensorMove", "Return", "Switch"}


class Node(NamedTuple):
    """One operator: its name, the nodes and parameters it takes, what it returns, and the cell it comes from."""

    op: str
    inputs: tuple
    text: str
    output: str
    scope: str


class Graph:
    """One function of the dump: nodes by number."""

    def __init__(self):
        self.nodes = {}

    def named(self, *ops):
        """Return the numbers of the nodes with one of these names, in the order of the dump."""
        return [number for number, node in self.nodes.items() if node.op in ops]

    def in_scope(self, word):
        """Return the numbers of the operators, plumbing left out, that come from a cell with `word` in its path."""
        return [n for n, node in self.nodes.items() if word in node.scope and node.op not in PLUMBING]

    def ancestors(self, number):
        """Return all nodes and parameters that node `number` waits for."""
        seen, todo = set(), list(self.nodes[number].inputs)
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += self.nodes[name].inputs if name in self.nodes else ()
        return seen


def parse(text):
    """Return {name: Graph} for a dump, the entry first."""
    graphs, graph = {}, None
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if GRAPH.match(line):
            graph = graphs[GRAPH.match(line)[1]] = Graph()
        elif graph is not None and NODE.match(line):
            number, op, rest = NODE.match(line).groups()
            scope = next((each for each in lines[index + 1:index + 4] if each.strip().startswith("# Scope")), "")
            arguments = f"{op} {rest}" if op.startswith("%") else _balanced(rest)  # the first is a call of the Switch
            graph.nodes[f"%{number}"] = Node(op.replace("PrimFunc_", ""), tuple(re.findall(r"%\w+", arguments)),
                                             arguments, lines[index + 1].split("->")[-1].strip(), scope)
    return graphs


def _balanced(text):
    depth = 1
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:position]
    return text


class CompiledStep:
    """The graph of a training step and the two branches of its gate."""

    def __init__(self, text):
        self.graphs = parse(text)
        self.entry = next(iter(self.graphs.values()))

    def gate(self):
        """Return (condition, graph run if it is true, graph run if it is false) of the only Switch."""
        (switch,) = self.entry.named("Switch")
        condition, *partials = self.entry.nodes[switch].inputs
        return (condition, *(self.graphs[re.search(r"@([^\s,]+)", self.entry.nodes[p].text)[1]] for p in partials))

    def operators(self):
        """Return how many times each operator occurs, plumbing left out."""
        every = (node for graph in self.graphs.values() for node in graph.nodes.values())
        return Counter(node.op for node in every if node.op not in PLUMBING and not node.op.startswith("%"))


def compile_step(step, *inputs):
    """Return the CompiledStep of a cell, which cannot be run after. Stops before any kernel is looked for."""
    from mindspore._c_expression import dump_func_graph  # these two are in MindSpore 2.9 and later
    from mindspore.graph.api import _cell_graph_executor

    os.environ["MS_DEV_PRECOMPILE_ONLY"] = "1"
    try:
        phase, _ = _cell_graph_executor.compile(step, *inputs, phase="train")
    finally:
        del os.environ["MS_DEV_PRECOMPILE_ONLY"]
    return CompiledStep(dump_func_graph(_cell_graph_executor._graph_executor.get_func_graph(phase)))
