"""A folder of images a class: both layouts, and every mistake named in one line."""

import os
import struct
import zlib
from pathlib import Path

import pytest
from pictures import add
from PIL import Image

from search_spaces.datasets.image_folder import decoded, image_folder
from tuner import run
from tuner.training.data import DataError, hold_out


def test_parts_in_folders(tree):
    splits = image_folder(tree, canvas=16)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [4, 4, 4]
    assert splits.constants == {"num_classes": 2} and str(tree) in splits.source
    assert splits.train.targets.tolist() == [0, 0, 1, 1]
    cats = tree / "test" / "cat"
    assert [os.fsdecode(path) for path in splits.test.paths[:2]] == [f"{cats}/0.jpg", f"{cats}/more/1.PNG"]
    assert splits.train.decode(str(tree / "train" / "cat" / "0.jpg")).shape == (3, 16, 16)


def test_classes_alone_are_training_data_from_which_a_part_is_held_out(tree):
    splits = image_folder(tree / "train", canvas=16)
    assert splits.validation is None and splits.test is None
    divided = hold_out(splits, fraction=0.5, seed=0)
    assert sorted([*divided.train.paths, *divided.validation.paths]) == sorted(splits.train.paths)
    assert len(divided.validation) == 2


def test_a_jpeg_of_countless_scans_is_not_decoded(tmp_path):
    path = tmp_path / "scans.jpg"
    Image.new("L", (64, 64), 128).save(path, progressive=True)
    content = path.read_bytes()
    last = content[content.rindex(b"\xff\xda") : -2]
    assert decoded(str(path), canvas=8).shape == (3, 8, 8)
    path.write_bytes(content[:-2] + last * 200 + content[-2:])
    with pytest.raises(ValueError, match="more than 100 scans"):
        decoded(str(path), canvas=8)


MISTAKES = {  # what -> the path that the error names, and what makes the mistake there
    "empty class": ("train/emu", Path.mkdir),
    "missing class": ("test/emu", lambda path: [add(path.parents[1] / split / "emu") for split in ("train", "val")]),
    "unknown class": ("val/emu", add),
    "text": ("train/dog/1.jpg", lambda path: path.write_text("no picture")),
    "empty file": ("test/cat/2.jpg", Path.touch),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_named_in_one_line(tree, what):
    name, make = MISTAKES[what]
    make(tree / name)
    with pytest.raises(DataError) as raised:
        image_folder(tree, canvas=16)
    assert str(raised.value).startswith(f"{tree / name}: ") and "\n" not in str(raised.value)


@pytest.mark.parametrize("side", [10_000, 20_000])  # Pillow warns of the first and refuses the second
def test_a_small_file_of_many_pixels_is_refused_before_it_is_decoded(tree, side, monkeypatch, capfd):
    path = tree / "train" / "dog" / "1.jpg"
    Image.new("L", (1, 1)).save(path, "PNG")
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", side, side)  # width and height in the header, whose checksum follows
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("it is decoded"))
    with pytest.raises(DataError, match="pixels") as raised:
        image_folder(tree, canvas=16)
    assert str(raised.value).startswith(f"{path}: ") and "\n" not in str(raised.value)
    with pytest.raises((ValueError, Image.DecompressionBombError), match="pixels"):
        decoded(str(path), canvas=16)
    assert not capfd.readouterr().err


def test_what_is_no_picture_by_its_content_is_not_given_to_a_program(tree, monkeypatch):
    path = tree / "train" / "dog" / "1.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(DataError, match="none of JPEG, PNG"):
        image_folder(tree, canvas=16)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="not a regular file"):
        image_folder(tree, canvas=16)


@pytest.mark.parametrize("options", [[], ["--data-dir", "no/such"], ["--data-dir", "."]])
def test_the_command_says_what_it_needs(one_ray, options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = run.main(["--space", "imagefolder", "--results", str(tmp_path / "results"), *options])
    message = capsys.readouterr().err
    assert code == 2 and message.count("\n") == 1 and "DIR/train/CLASS" in message


def test_a_trial_that_meets_a_broken_picture_fails_with_its_path_and_leaves_no_process(search_here, tree):
    path = add(tree / "train" / "dog", "2.jpg", size=(200, 200))
    path.write_bytes(path.read_bytes()[:-2000])
    options = ["--data-dir", str(tree), "--num-samples", "1", "--max-epochs", "1", "--no-preflight"]
    ran = search_here("imagefolder:space64", *options)
    (trial,) = ran.trials.values()
    assert ran.code == 1 and trial.status == "failed"
    assert str(path) in trial.errors[-1] and "truncated" in trial.errors[-1]
    assert not (ran.folder / "best").exists()
