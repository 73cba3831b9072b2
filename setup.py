"""Packaging of ms_lossscale."""

import re
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "ms_lossscale" / "__init__.py").read_text(encoding="utf-8"))[1]

# matplotlib draws histories; tensorboardX writes event files without TensorFlow or PyTorch.
PLOT = ["matplotlib"]
TENSORBOARD = ["tensorboardX"]
DEMO = ["scikit-learn", "matplotlib", "tqdm"]

# Not a Python module: functions that MindSpore loads. Without a compiler the installation goes on without it.
COMPILED = Extension("ms_lossscale._compiled", ["ms_lossscale/compiled.c"], optional=True, libraries=["m"],
                     extra_compile_args=["-O3", "-ffp-contract=off", "-pthread"], extra_link_args=["-pthread"])

setup(
    name="ms_lossscale",
    version=VERSION,
    description="Loss scaling for MindSpore: the documented API, on Ascend, GPU and CPU",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.9,<3.13",
    packages=find_packages(include=["ms_lossscale", "ms_lossscale.*"]),
    package_data={"ms_lossscale": ["py.typed"]},
    ext_modules=[COMPILED] if sys.platform == "linux" else [],
    # Clusters carry their own MindSpore and NumPy; nothing here may replace them.
    install_requires=["numpy"],
    extras_require={
        # MindSpore is built against NumPy 1.
        "cpu": ["mindspore>=2.7", "numpy<2"],
        "demo": DEMO,
        "plot": PLOT,
        "tensorboard": TENSORBOARD,
        # A MindSpore graph compiles in one thread: pytest-xdist halves the wait. tensorboard reads event files back.
        "test": [*DEMO, *PLOT, *TENSORBOARD, "tensorboard", "mindcv>=0.3", "pytest>=7", "pytest-xdist>=3", "hypothesis",
                 "ruff", "build"],
        "docs": ["sphinx", "furo", "myst-parser"],
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
