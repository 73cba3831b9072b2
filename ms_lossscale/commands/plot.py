"""``python -m ms_lossscale plot``: draw the history that a LossScaleMonitor wrote."""

from __future__ import annotations

import argparse
import sys

from ms_lossscale.plot import plot_history


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 if a file cannot be read or written or matplotlib is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m ms_lossscale plot",
        description="Draw the loss, the loss scale and the skipped steps of one training or several.")
    parser.add_argument("history", nargs="+", metavar="HISTORY", help="a file that LossScaleMonitor(history=...) wrote")
    parser.add_argument("-o", "--output", metavar="PNG", default="history.png",
                        help="the picture to write (default: history.png)")
    options = parser.parse_args(argv)
    try:
        print(f"Picture: {plot_history(*options.history, output=options.output)}")
    except (OSError, ValueError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
