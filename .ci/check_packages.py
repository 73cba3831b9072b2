"""
Check that a wheel and an sdist hold the package, what is needed to build it, and nothing else.

    check_packages.py SDIST WHEEL       a wheel built where there is a C compiler
    check_packages.py --pure WHEEL      one built where there is none
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import PurePosixPath

NEEDED_TO_BUILD = {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in"}
COMPILED = r"ms_lossscale/_compiled\.[\w.-]+\.so"
GENERATED = {"PKG-INFO", "setup.cfg"}


def main(paths):
    pure = paths[:1] == ["--pure"]
    paths = paths[1:] if pure else paths
    tracked = subprocess.run(["git", "ls-files", "ms_lossscale"], check=True, capture_output=True, text=True)
    sources = set(tracked.stdout.split())
    for path in paths:
        found = wheel_files(path) if path.endswith(".whl") else sdist_files(path)
        wanted = sources | NEEDED_TO_BUILD
        if path.endswith(".whl"):
            wanted = {name for name in sources if not name.endswith(".c")}
            compiled = {name for name in found if re.fullmatch(COMPILED, name)}
            if len(compiled) != (0 if pure else 1):
                sys.exit(f"{path}: {sorted(compiled) or 'no compiled part'}")
            found -= compiled
        if found != wanted:
            sys.exit(f"{path}: missing {sorted(wanted - found)}, not wanted {sorted(found - wanted)}")
        print(f"{PurePosixPath(path).name}: {len(found)} files, as they should be")
    if len(paths) != (1 if pure else 2):
        sys.exit(f"one wheel, and one sdist unless --pure, were expected, not {paths}")


def wheel_files(path):
    return {name for name in zipfile.ZipFile(path).namelist() if ".dist-info/" not in name}


def sdist_files(path):
    with tarfile.open(path) as archive:
        names = [member.name.split("/", 1)[1] for member in archive if member.isfile()]
    return {name for name in names if ".egg-info/" not in name} - GENERATED


if __name__ == "__main__":
    main(sys.argv[1:])
