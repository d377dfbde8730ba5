"""A file with other objects than tensors is loaded only with the seal of the search's key, or if it is trusted."""

from types import SimpleNamespace

import pytest
import torch

from tuner.training import seals


def test_only_the_own_content_under_the_own_key_is_safe(tmp_path, monkeypatch):
    file = tmp_path / "state.ckpt"
    torch.save({"own": SimpleNamespace()}, file)
    monkeypatch.delenv(seals.KEY, raising=False)
    seals.seal(file)
    assert not seals.seal_of(file).exists() and "and this search has not saved it so" in seals.why_unsafe(file)
    monkeypatch.setenv(seals.KEY, "ours")
    seals.seal(file)
    assert not seals.why_unsafe(file)
    monkeypatch.setenv(seals.KEY, "theirs")
    assert "--trust" in seals.why_unsafe(file)
    monkeypatch.setenv(seals.TRUSTED, "1")
    assert not seals.why_unsafe(file)
    monkeypatch.setenv(seals.TRUSTED, "")
    monkeypatch.setenv(seals.KEY, "ours")
    torch.save({"other": SimpleNamespace()}, file)
    assert "SimpleNamespace" in seals.why_unsafe(file)


@pytest.mark.parametrize("key", ["ours", ""])
def test_plain_files_need_no_seal_and_an_empty_key_seals_nothing(tmp_path, monkeypatch, key):
    monkeypatch.setenv(seals.KEY, key)
    file = tmp_path / "state.ckpt"
    torch.save({"own": torch.ones(3)}, file)
    seals.seal(file)
    assert not seals.seal_of(file).exists() and not seals.why_unsafe(file)
    torch.save({"own": SimpleNamespace()}, file)
    seals.seal_of(file).write_text(seals._sum_of(file, ""))  # as a stranger may do
    assert seals.why_unsafe(file)
