"""CIFAR-10: both layouts, every damage named, and the way from the cache over a download to the sample."""

import hashlib
import pickle
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from search_spaces.datasets import cifar10 as module
from search_spaces.datasets.cifar10 import cifar10
from tuner.record.storage.made import temporary_folder
from tuner.training.data import DataError

IMAGES = 20  # in a file of the small data sets made here
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder with a data set of 20 images a file in both layouts, whose digests the loader expects."""
    place = tmp_path / "small"
    generator = np.random.default_rng(0)
    (place / module.BINARY).mkdir(parents=True)
    (place / module.PICKLED).mkdir()
    sha256s, md5s = [], []
    for name in NAMES:
        labels = generator.integers(0, 10, IMAGES, np.uint8)
        pixels = generator.integers(0, 256, (IMAGES, 3072), np.uint8)
        records = np.concatenate([labels[:, None], pixels], axis=1).tobytes()
        (place / module.BINARY / f"{name}.bin").write_bytes(records)
        sha256s.append((f"{name}.bin", hashlib.sha256(records).hexdigest()))
        entry = pickle.dumps({"data": pixels, "labels": labels.tolist()}, protocol=2)
        (place / module.PICKLED / name).write_bytes(entry)
        md5s.append([name, hashlib.md5(entry).hexdigest()])
    monkeypatch.setattr(module, "BINARY_FILES", tuple(sha256s))
    monkeypatch.setattr(CIFAR10, "train_list", md5s[:5])
    monkeypatch.setattr(CIFAR10, "test_list", md5s[5:])
    return place


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The place of the cache, in a folder that is not there yet."""
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cifar10"


def same(one, other):
    assert one is not None and other is not None
    return np.array_equal(one.inputs, other.inputs) and np.array_equal(one.targets, other.targets)


def flip_byte(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_sample_has_the_first_images_of_each_class():
    splits = module.load_sample("no network")
    assert splits.test is not None and splits.validation is None
    for part, per_class in ((splits.train, 500), (splits.test, 100)):
        assert part.inputs.shape == (10 * per_class, 3, 32, 32)
        assert part.inputs.dtype == np.uint8 and part.inputs.flags.c_contiguous
        assert part.targets.dtype == np.int64
        assert np.bincount(part.targets).tolist() == [per_class] * 10
    # The first labels of the data set itself: no class is full yet, so that the sample begins like it.
    assert splits.train.targets[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert splits.test.targets[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


@pytest.mark.parametrize(
    ("file", "damage", "named"),
    [
        ("test_labels.txt", lambda path: flip_byte(path, 3), "sha256"),
        ("train_3.webp", Path.unlink, "train_3.webp"),
        ("train_3.webp", lambda path: path.write_bytes(b"not an image"), "train_3.webp"),
    ],
)
def test_altered_sample_is_refused(file, damage, named, tmp_path, monkeypatch):
    shutil.copytree(module.SAMPLE, tmp_path / "sample")
    monkeypatch.setattr(module, "SAMPLE", tmp_path / "sample")
    damage(tmp_path / "sample" / file)
    with pytest.raises(DataError, match=named):
        module.load_sample("")


@pytest.mark.parametrize("layout", [module.BINARY, module.PICKLED])
@pytest.mark.parametrize("inside", [True, False])
def test_both_layouts_in_a_folder_or_as_the_folder(small, layout, inside):
    record, expected = (small / module.BINARY / "data_batch_1.bin").read_bytes(), cifar10(small)
    shutil.rmtree(small / (module.PICKLED if layout == module.BINARY else module.BINARY))
    splits = cifar10(small / layout if inside else small)
    assert splits.train.inputs.shape == (5 * IMAGES, 3, 32, 32) and splits.train.inputs.dtype == np.uint8
    assert splits.train.targets.dtype == np.int64
    assert same(splits.train, expected.train) and same(splits.test, expected.test)
    assert splits.train.targets[0] == record[0]  # the planes are red, green, blue
    assert splits.train.inputs[0].tobytes() == record[1 : module.RECORD_BYTES]
    assert str(small / layout) in splits.source and splits.notice == ""


@pytest.mark.parametrize(
    ("damage", "message"), [(lambda path: flip_byte(path, 5000), "truncated or altered"), (Path.unlink, "No such file")]
)
def test_damaged_binary_file_is_named(small, damage, message):
    path = small / module.BINARY / "data_batch_4.bin"
    damage(path)
    with pytest.raises(DataError) as error:
        cifar10(small / module.BINARY)
    assert str(path) in str(error.value) and message in str(error.value)


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_pickle_of_another_md5_is_not_unpickled(small, tmp_path):
    (small / module.PICKLED / "data_batch_2").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(DataError, match="data_batch_2"):
        cifar10(small)
    assert not (tmp_path / "sprung").exists()


def test_look_up_that_hangs_is_left_behind(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(module, "REACH_SECONDS", 0.3)
    over, ended = threading.Event(), threading.Event()

    def hang(*_, **__):
        over.wait(60)
        ended.set()
        raise OSError("the look-up ended")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    assert "no answer" in module.why_unreachable("http://data.invalid/archive")
    assert not ended.is_set()  # the answer did not wait for it
    over.set()


def test_one_download_for_all_who_ask_at_once(small, cache, monkeypatch):
    downloads = []

    def download(folder):
        downloads.append(folder)
        time.sleep(0.3)
        shutil.copytree(small / module.PICKLED, folder / module.PICKLED)

    monkeypatch.setattr(module, "why_unreachable", lambda url: "")
    monkeypatch.setattr(module, "download", download)
    # What a process killed in its download left behind is no hindrance.
    cache.parent.mkdir(parents=True, exist_ok=True)
    (temporary_folder(module.PARTIAL, cache.parent).path / "left").mkdir()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(cifar10, [None] * 4))
    assert len(downloads) == 1
    for splits in answers:
        assert same(splits.train, cifar10(small).train) and str(cache) in splits.source and not splits.notice
    assert {path.name for path in cache.parent.iterdir()} <= {"cifar10", "cifar10.lock"}


def test_a_damaged_download_is_replaced_and_what_tuner_has_not_made_is_kept(small, cache, monkeypatch):
    monkeypatch.setattr(module, "why_unreachable", lambda url: "")
    monkeypatch.setattr(module, "download", lambda folder: shutil.copytree(small, folder, dirs_exist_ok=True))
    assert len(cifar10(None).train) == 5 * IMAGES
    flip_byte(cache / module.PICKLED / "data_batch_1", 5000)
    assert module.load_cached(cache) is None and len(cifar10(None).train) == 5 * IMAGES
    assert module.load_cached(cache) is not None
    flip_byte(cache / module.PICKLED / "data_batch_1", 5000)
    cache.rename(cache.with_name("mine"))
    shutil.copytree(cache.with_name("mine"), cache)
    assert "tuner has not made it; rename it" in cifar10(None).notice
    assert module.load_cached(cache) is None and (cache / module.PICKLED / "data_batch_1").exists()


@pytest.mark.parametrize(
    ("unreachable", "error", "words"),
    [
        ("timed out after 5 s", None, "(could not reach www.cs.toronto.edu: timed out after 5 s)"),
        ("", ConnectionResetError("reset by peer"), "reset by peer"),
        ("", RuntimeError("File corrupted."), "File corrupted."),
    ],
)
def test_a_failed_download_gives_the_sample(cache, monkeypatch, unreachable, error, words):
    monkeypatch.setattr(module, "why_unreachable", lambda url: unreachable)
    monkeypatch.setattr(module, "download", mock.Mock(side_effect=error))
    splits = cifar10(None)
    assert len(splits.train) == 5000 and "www.cs.toronto.edu" in splits.notice and words in splits.notice
    assert not cache.exists()


def test_stalled_download_gives_the_sample(cache, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(module, "why_unreachable", lambda url: "")
    monkeypatch.setattr(module, "STALL_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, and never answers
        monkeypatch.setattr(module, "DOWNLOAD_URL", f"http://127.0.0.1:{server.getsockname()[1]}/cifar-10.tar.gz")
        notice = cifar10(None).notice
    assert "the download from 127.0.0.1" in notice and "timed out" in notice
    assert socket.getdefaulttimeout() is None
