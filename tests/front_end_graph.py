"""A compiled step as MindSpore's front end leaves it: operators, what each depends on, and the branches of the gate."""

import os
import re
from collections import Counter
from typing import NamedTuple

NODE = re.compile(r"^  (%\d+)\(.*?\) = (\S.*?)\((.*)$")
NAME = r"%[\w.]+"
GRAPH = re.compile(r"^subgraph @(\S+?)\((.*?)\) \{$")
# What only orders, packs or moves; a backend runs no kernel for it that MindSpore's own step would not have.
PLUMBING = {"Depend", "Load", "UpdateState", "MakeTuple", "TupleGetItem", "Partial", "TensorMove", "Return", "Switch"}


class Node(NamedTuple):
    """One operator: its name, the nodes and parameters it takes, and what it returns."""

    op: str
    inputs: tuple
    text: str
    output: str


class Graph:
    """One function of the dump: its parameters, and its nodes by number."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.nodes = {}

    def named(self, *ops):
        """Return the numbers of the nodes with one of these names, in the order of the dump."""
        return [number for number, node in self.nodes.items() if node.op in ops]

    def operators(self, numbers=None):
        """Return the numbers of the nodes, or of those among `numbers`, that are operators and not plumbing."""
        return [n for n, node in self.nodes.items() if (numbers is None or n in numbers)
                and node.op not in PLUMBING and not node.op.startswith("%")]

    def count(self, numbers):
        """Return how many times each operator occurs among these nodes."""
        return Counter(self.nodes[n].op for n in numbers)

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
            graph = graphs[GRAPH.match(line)[1]] = Graph(re.findall(NAME, GRAPH.match(line)[2]))
        elif graph is not None and NODE.match(line):
            number, op, rest = NODE.match(line).groups()
            arguments = f"{op} {rest}" if op.startswith("%") else _balanced(rest)  # the first is a call of the Switch
            graph.nodes[number] = Node(op.replace("PrimFunc_", ""), tuple(re.findall(NAME, arguments)),
                                       arguments, lines[index + 1].split("->")[-1].strip())
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
        """Return the condition of the only Switch, and its two branches: what each is given, and its graph."""
        (switch,) = self.entry.named("Switch")
        condition, *partials = self.entry.nodes[switch].inputs
        given = [self.entry.nodes[partial] for partial in partials]
        return condition, *((node.inputs, self.graphs[re.search(r"@([^\s,]+)", node.text)[1]]) for node in given)

    def gradients(self, update="ApplyMomentum", position=3):
        """Return the nodes that the optimizer takes for its gradients."""
        _, (given, taken), _ = self.gate()
        return [given[taken.parameters.index(taken.nodes[n].inputs[position])] for n in taken.named(update)]

    def loss(self):
        """Return the node of the loss, the first thing that the branch without the optimizer is given."""
        return self.gate()[2][0][0]

    def passes(self):
        """Return the operators of the forward and the backward pass, unscaling and reduction: what leads to them."""
        leads = {self.loss(), *self.gradients()}
        return self.entry.operators(leads.union(*(self.entry.ancestors(node) for node in leads)))

    def operators(self):
        """Return how many times each operator occurs in the whole step, plumbing left out."""
        return sum((graph.count(graph.operators()) for graph in self.graphs.values()), Counter())


def compile_step(step, *inputs):
    """Return the CompiledStep of a cell, which cannot be run after. Stops before any kernel is looked for."""
    from mindspore._c_expression import dump_func_graph

    try:
        from mindspore.graph.api import _cell_graph_executor
    except ModuleNotFoundError:  # before 2.9
        from mindspore.common.api import _cell_graph_executor

    os.environ["MS_DEV_PRECOMPILE_ONLY"] = "1"
    try:
        phase, _ = _cell_graph_executor.compile(step, *inputs, phase="train")
    finally:
        del os.environ["MS_DEV_PRECOMPILE_ONLY"]
    return CompiledStep(dump_func_graph(_cell_graph_executor._graph_executor.get_func_graph(phase)))
