"""A training's history as JSON lines: one whole line a record, so a crash costs the last line at most."""

from __future__ import annotations

import json
import math
import os
from os import PathLike

FIELDS = ("step", "loss", "scale", "applied", "skipped", "consecutive_overflows")


class History:
    """
    Appends records to a file.

    Args:
        path: The file. What a crash tore, and records of steps after `last_step`, are dropped from it. A file of
            another training (`last_step` is 0) is kept under the name with ``.old`` added.
        last_step: The last step that the training has done; it goes on after it.
    """

    def __init__(self, path: str | PathLike, last_step: int) -> None:
        path = os.fspath(path)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if os.path.exists(path):
            kept = _length_up_to(path, last_step)
            if last_step == 0 and os.path.getsize(path) > 0:
                os.replace(path, path + ".old")
            elif kept < os.path.getsize(path):
                os.truncate(path, kept)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115, closed by close

    def write(self, record: dict) -> None:
        """Append a record in one write; NaN and Inf, which JSON has not, become strings."""
        fields = {name: _as_json(value) for name, value in record.items()}
        self._file.write(json.dumps(fields, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_history(path: str | PathLike) -> list[dict]:
    """Return the records of a history; lines that are none, such as a torn last one, are left out."""
    with open(path, "rb") as file:
        return [record for record in map(_record, file) if record is not None]


def _length_up_to(path, last_step):
    """Return how many bytes hold the whole records up to `last_step`."""
    length = 0
    with open(path, "rb") as file:
        for line in file:
            record = _record(line)
            if record is None or record["step"] > last_step:
                break
            length += len(line)
    return length


def _record(line):
    """Return the record of a line, or None."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    if "loss" in record:
        record["loss"] = math.nan if record["loss"] is None else float(record["loss"])
    return record


def _as_json(value):
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
