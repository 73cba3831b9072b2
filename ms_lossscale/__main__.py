"""``python -m ms_lossscale COMMAND``: only dispatches."""

import importlib
import sys

COMMANDS = {
    "check": "tell how overflow is found on this machine, and whether loss scaling works here",
    "run": "run an unmodified script with this package in the place of MindSpore's loss scaling",
    "demo": "train a network in float16 with and without loss scaling, and compare",
    "plot": "draw the history that a LossScaleMonitor wrote",
}


def main(argv=None):
    """Run a command and return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        return importlib.import_module(f"ms_lossscale.commands.{argv[0]}").main(argv[1:])
    listing = "\n".join(f"  {name:<8}{text}" for name, text in COMMANDS.items())
    usage = f"usage: python -m ms_lossscale COMMAND [OPTIONS]\n\n{listing}\n\nCOMMAND --help lists its options."
    asked = bool(argv) and argv[0] in ("-h", "--help")
    print(usage, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
