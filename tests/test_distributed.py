"""Data parallel under msrun: an overflow on one rank skips the step on all, and the ranks stay equal."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from distributed_worker import SCALE, STEPS, WAYS, WINDOW, overflowing_rank
from docs_source import fences

HERE = Path(__file__).parent
MSRUN = Path(sys.executable).with_name("msrun")

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(not MSRUN.exists(), reason="msrun came after MindSpore 2.0.0")]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_job(ranks, folder, worker="distributed_worker.py"):
    """Run the worker on `ranks` CPU processes as a user would."""
    run_command([str(MSRUN), f"--worker_num={ranks}", f"--local_worker_num={ranks}", f"--master_port={free_port()}",
                 "--log_dir=logs", "--join=True", str(HERE / worker), str(folder)], folder)


def run_command(command, folder):
    path = os.pathsep.join([str(HERE.parent), str(MSRUN.parent), os.environ["PATH"]])
    job = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(HERE.parent), "PATH": path},
                         capture_output=True, text=True, timeout=500)
    assert job.returncode == 0, "\n".join(log.read_text()[-3000:] for log in (folder / "logs").glob("worker_*.log"))


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def job(request, tmp_path_factory):
    """The number of ranks, and the folder with what each of them ended with."""
    folder = tmp_path_factory.mktemp("job")
    run_job(request.param, folder)
    return request.param, folder


@pytest.fixture(params=WAYS, ids=" ".join)
def results(job, request):
    ranks, folder = job
    return [np.load(folder / f"{' '.join(request.param)} rank {rank}.npz") for rank in range(ranks)]


def test_an_overflow_on_any_single_rank_skips_the_step_on_all(results):
    expected = [overflowing_rank(step, len(results)) is not None for step in range(STEPS)]
    assert {overflowing_rank(step, len(results)) for step in range(STEPS)} == {None, *range(len(results))}
    for result in results:
        assert [bool(overflow) for overflow, _ in result["told"]] == expected
        assert result["skipped_steps"] == sum(expected)
        assert result["applied_steps"] == STEPS - sum(expected)


def test_scale_counters_and_parameters_are_equal_on_all_ranks(results):
    first, *others = results
    assert set(first.files) > {"told", "scale_sense", "skipped_steps", "first.weight", "moment1.first.weight"}
    for other in others:
        for name in first.files:
            np.testing.assert_array_equal(first[name], other[name], err_msg=name)


def test_the_scale_follows_the_rule_on_every_rank(results):
    scale, clean, expected = SCALE, 0, []
    for step in range(STEPS):
        clean = 0 if overflowing_rank(step, len(results)) is not None else clean + 1
        if clean == 0:
            scale /= 2
        elif clean == WINDOW:
            scale, clean = scale * 2, 0
        expected.append(scale)
    assert len(set(expected)) > 4
    for result in results:
        assert [scale for _, scale in result["told"]] == expected


def test_the_steps_that_were_not_skipped_trained(results):
    assert np.abs(results[0]["moment1.first.weight"]).min() > 0
    assert all(np.isfinite(results[0][name]).all() for name in results[0].files)


def test_the_how_to_page_works_as_it_is_written(tmp_path):
    page = HERE.parent / "docs_en" / "how_to" / "data_parallel.md"
    script, command, *_ = (fence for fence in fences(page) if fence.language in ("python", "bash"))
    shown = next(fence for fence in fences(page) if fence.language == "text").lines
    (tmp_path / "train.py").write_text("\n".join(script.lines), encoding="utf-8")
    words = command.lines[0].replace("8118", str(free_port())).split()
    run_command([str(MSRUN), *words[1:]], tmp_path)
    logs = [(tmp_path / "logs" / f"worker_{rank}.log").read_text().splitlines() for rank in range(2)]
    printed = [line for log in logs for line in log if line.startswith("rank ")]
    assert words[0] == "msrun"
    assert printed == shown
