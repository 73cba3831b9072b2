"""plot_history and its command: what is drawn of ten steps and of a hundred thousand."""

import json

import numpy as np
import pytest

from ms_lossscale import __main__ as command_line
from ms_lossscale import plot_history
from ms_lossscale.plot import MOST_POINTS, columns, pieces, skipped_so_far, thinned

PNG = b"\x89PNG\r\n\x1a\n"


def write(path, count, skipped_at=(), loss=0.5):
    with open(path, "w", encoding="utf-8") as file:
        for step in range(1, count + 1):
            skipped = int(step in skipped_at)
            print(json.dumps({"step": step, "loss": loss, "scale": 1024.0, "applied": 1 - skipped, "skipped": skipped,
                              "consecutive_overflows": skipped}), file=file)
    return str(path)


@pytest.mark.parametrize("count", [1, 10, 100_000])
def test_a_picture_of_any_length_is_drawn(count, tmp_path):
    path = write(tmp_path / "h.jsonl", count, {1, 4})
    output = str(tmp_path / "picture.png")
    assert plot_history(path, output=output) == output
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG)


def test_a_history_of_nothing_but_nan_is_drawn(tmp_path):
    path = write(tmp_path / "h.jsonl", 5, {1, 2, 3, 4, 5}, loss="nan")
    plot_history(path, output=tmp_path / "picture.png")


@pytest.mark.parametrize("length", [1, 7, 799, 800, 801, 100_000])
def test_pieces_cover_every_record_once(length):
    covered = np.concatenate([np.arange(length)[piece] for piece in pieces(length, MOST_POINTS)])
    assert covered.tolist() == list(range(length))
    assert len(pieces(length, MOST_POINTS)) == min(length, MOST_POINTS)


def test_thinning_keeps_a_single_peak_and_leaves_nan_out():
    steps, values = np.arange(1, 100_001), np.ones(100_000)
    values[[500, 70_000]] = np.nan, 1000.0
    places, means, lows, highs = thinned(steps, values)
    assert len(places) == MOST_POINTS and places[-1] == 100_000
    assert highs.max() == 1000.0 and lows.min() == 1.0
    assert means.max() == pytest.approx(1 + 999 / 125)
    assert not np.isnan(means).any()


def test_every_piece_with_a_skipped_step_is_marked(tmp_path):
    history = columns(write(tmp_path / "h.jsonl", 5000, {1, 2502, 2503, 5000}))
    steps, totals, marked = skipped_so_far(history)
    assert (marked.sum(), totals[-1]) == (3, 4)
    assert [totals[steps >= step][0] for step in (1, 2499, 5000)] == [1, 1, 4]


def test_a_step_that_is_there_twice_counts_once(tmp_path):
    path = tmp_path / "h.jsonl"
    write(path, 3)
    path.write_text(path.read_text() * 2, encoding="utf-8")
    assert columns(path)["step"].tolist() == [1, 2, 3]


def test_the_command_draws_several_histories(tmp_path, capsys):
    paths = [write(tmp_path / name, 20, {3}) for name in ("a.jsonl", "b.jsonl")]
    assert command_line.main(["plot", *paths, "-o", str(tmp_path / "both.png")]) == 0
    assert capsys.readouterr().out == f"Picture: {tmp_path / 'both.png'}\n"
    assert (tmp_path / "both.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("content", [None, b"", b"no json\n"], ids=["missing", "empty", "no history"])
def test_the_command_fails_in_one_line_for_a_file_that_is_no_history(content, tmp_path, capsys):
    path = tmp_path / "h.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert command_line.main(["plot", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_without_a_file_it_says_so():
    with pytest.raises(ValueError, match="'paths' must be one history file or more"):
        plot_history()
