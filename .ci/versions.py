#!/usr/bin/env python3
"""
Run the tests under MindSpore versions, each in a virtual environment of its own, and print what passed and skipped.
Then let each version go on from a checkpoint of each other one.

    .ci/versions.py                 the whole matrix, fast tests
    .ci/versions.py 2.0.0           every row of that version
    .ci/versions.py --slow 2.0.0    the slow tests there
    .ci/versions.py 2.0.0 --exchange-with .venv/bin/python
                                    checkpoints also to and from that environment

The environments stay in .venvs/ and are made anew when a row or setup.py changes.
"""

import argparse
import hashlib
import itertools
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MATRIX = [  # MindSpore, Python, and what pip is asked for beside it
    ("2.0.0", "3.9", ["numpy<2", "pillow<10", "protobuf<4"]),
    ("2.7.1", "3.10", ["numpy<2"]),
    ("2.9.0", "3.12", ["numpy<2"]),
    ("2.10.0", "3.10", ["numpy<2"]),
    ("2.10.0", "3.11", ["numpy<2"]),
    ("2.10.0", "3.12", ["numpy<2"]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true", help="run the slow tests instead of the fast ones")
    parser.add_argument("versions", nargs="*", help="MindSpore versions (default: all)")
    parser.add_argument("--exchange-with", metavar="PYTHON", help="one more environment to exchange checkpoints with")
    options = parser.parse_args()
    unknown = set(options.versions) - {row[0] for row in MATRIX}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    rows = [row for row in MATRIX if not options.versions or row[0] in options.versions]
    # All of them first: a missing interpreter is told before an hour of tests.
    interpreters = {python: interpreter(python) for _, python, _ in rows}
    lines, skips, failed, pythons = [], {}, False, {}
    if options.exchange_with:
        pythons["other"] = ROOT / options.exchange_with
    for mindspore, python, beside in rows:
        print(f"\n-- MindSpore {mindspore}, Python {python}", flush=True)
        home = environment(mindspore, python, beside, interpreters[python])
        status, counts, skips[f"{mindspore} ({python})"] = run_tests(home, options.slow)
        failed = failed or status != 0
        pythons[mindspore] = home / "bin" / "python"
        lines.append(f"| {mindspore} | {python} | {counts['passed']} | {counts['skipped']} | {counts['failed']} |")
    print("\n| MindSpore | Python | passed | skipped | failed |\n|---|---|---|---|---|")
    print("\n".join(lines))
    print_reasons(skips)
    if not options.slow:
        exchange_checkpoints(pythons)
    return int(failed)


def interpreter(version):
    """Return a command that starts this Python; exit if there is none."""
    for name in ["", *pyenv_versions(version)]:
        environ = {**os.environ, **({"PYENV_VERSION": name} if name else {})}
        try:
            told = subprocess.run([f"python{version}", "-c", "import sys; print(sys.executable)"], env=environ,
                                  capture_output=True, text=True)
        except FileNotFoundError:
            break
        if told.returncode == 0:
            return told.stdout.strip()
    sys.exit(f"Python {version} is not installed; the tests of its MindSpore cannot run.")


def pyenv_versions(version):
    """Return the releases of this Python that pyenv has, if there is a pyenv."""
    try:
        told = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return []
    return [name for name in told.stdout.split() if name.startswith(f"{version}.")]


def environment(mindspore, python, beside, command):
    """Return the folder of a virtual environment with this MindSpore and the tests' packages."""
    home = ROOT / ".venvs" / f"mindspore{mindspore}-python{python}"
    wanted = [f"mindspore=={mindspore}", *beside]
    recipe = hashlib.sha256(repr([command, wanted, (ROOT / "setup.py").read_text(encoding="utf-8")]).encode())
    mark = home / "recipe"
    if not mark.exists() or mark.read_text() != recipe.hexdigest():
        subprocess.run([command, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "-q", "-e", f"{ROOT}[demo,test]", *wanted], check=True)
        mark.write_text(recipe.hexdigest())
    else:  # what is compiled may have changed
        subprocess.run([str(home / "bin" / "pip"), "install", "-q", "--no-deps", "-e", str(ROOT)], check=True)
    return home


def run_tests(home, slow):
    """Run pytest; return its exit status, how many tests passed, skipped and failed, and how many for which reason."""
    report = home / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(home / "bin" / "python"), "-m", "pytest", "-q", f"--junitxml={report}", *(["-m", "slow"] * slow)]
    status = subprocess.run(command, cwd=ROOT).returncode
    if not report.exists():
        return status or 1, dict.fromkeys(("passed", "skipped", "failed"), "-"), Counter()
    suite = ElementTree.parse(report).getroot().find("testsuite")
    number = {name: int(suite.get(name)) for name in ("tests", "skipped", "failures", "errors")}
    failed = number["failures"] + number["errors"]
    counts = {"passed": number["tests"] - number["skipped"] - failed, "skipped": number["skipped"], "failed": failed}
    return status, counts, Counter(skip.get("message") for skip in suite.iter("skipped"))


def print_reasons(skips):
    """Print what was skipped where: a line for each reason, with the number of tests under each version."""
    if any(skips.values()):
        print("\nSkipped:")
    for reason in sorted(set().union(*skips.values())):
        print(f"- {reason}: {', '.join(f'{found[reason]} on {row}' for row, found in skips.items() if found[reason])}")


def exchange_checkpoints(pythons):
    """Let each version write a checkpoint, and every other one go on from it; an error ends the run."""
    script = str(ROOT / "tests" / "checkpoint_exchange.py")
    with tempfile.TemporaryDirectory() as folder:
        folders = {name: Path(folder, name) for name in pythons}
        for name, python in pythons.items():
            run_script([python, script, "write", folders[name]], folder)
        for own, other in itertools.permutations(pythons, 2):
            print(f"\n-- {own} goes on from a checkpoint of {other}", flush=True)
            run_script([pythons[own], script, "resume", folders[own], folders[other]], folder)


def run_script(command, folder):
    subprocess.run(list(map(str, command)), cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


if __name__ == "__main__":
    sys.exit(main())
