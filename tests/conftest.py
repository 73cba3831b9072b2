"""What every test starts from: both modes, fixed seeds, and a scratch folder for what MindSpore writes."""

import os

os.environ.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only

import mindspore as ms
import pytest


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """MindSpore drops analysis files into the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=[ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"])
def mode(request):
    """Run the test in both modes."""
    before = ms.get_context("mode")
    ms.set_context(mode=request.param)
    ms.set_seed(1)
    yield request.param
    ms.set_context(mode=before)


@pytest.fixture
def graph_mode():
    """Run the test in GRAPH mode."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)
