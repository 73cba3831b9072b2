"""The benchmark runs, in its quick setting, and names every variant."""

import json
import subprocess
import sys

import pytest
from docs_source import ROOT

STEPS = {"plain", "plain again", "the if alone", "ours", "ours, nothing compiled", "ours, a subclass", "MindSpore's",
         "clip_norm=1.0", "clip_value=1.0", "accumulation_steps=4", "restore_buffers=True", "scaling=False"}


@pytest.mark.slow
def test_the_quick_benchmark_prints_a_table_and_writes_positive_numbers_for_every_variant(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    written = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(written)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "gradient pass, over 'one Mul each'" in run.stdout
    found = json.loads(written.read_text(encoding="utf-8"))
    for mode in ("graph", "pynative"):
        for seconds in found["step"][mode].values():
            assert set(seconds) == STEPS
            assert min(seconds.values()) > 0
        for seconds in found["gradient pass"][mode].values():
            assert {"ours, in the step", "MindSpore, in the step"} < set(seconds)
            assert min(seconds.values()) > 0
