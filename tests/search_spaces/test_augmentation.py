"""The batched augmentation: each change is torchvision's at the same parameters, each image has its own draws."""

import math

import pytest
import torch
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as reference

from search_spaces.augmentation import chain
from search_spaces.augmentation.batched import (
    Jitters,
    Warps,
    change,
    draw_jitters,
    draw_warps,
    hue_steps,
    jitter,
    maps_of,
    warp,
)
from search_spaces.augmentation.chain import augment
from search_spaces.shared.imagenet import MEAN, STD

NAMES = ("brightness", "contrast", "saturation", "hue")
NUM_DRAWS = 4000


def pixels(num=3, height=40, width=48):
    """Smooth pictures, so that a pixel more or less to one side is no large difference."""
    torch.manual_seed(0)
    coarse = torch.rand(num, 3, 6, 6)
    fine = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic").clamp(0, 1)
    return (fine * 255).round().to(torch.uint8)


@pytest.mark.parametrize(
    ("name", "factor"),
    [(name, factor) for name in NAMES[:3] for factor in (0.0, 0.6, 1.0, 1.4)]
    + [("hue", turn) for turn in (-0.5, -0.3, -0.1, -0.08, 0.0, 1 / 12, 0.1, 0.2, 0.5)],
)
def test_a_change_of_colour_is_torchvisions(name, factor):
    images = torch.rand(2, 3, 32, 32)
    images[0, :, :4] = images[0, :1, :4]  # greys have no hue
    images[0, 1, 4:8] = images[0, 0, 4:8]  # two channels alike, the third of the range's ends
    images[1, 2, :4], images[1, 2, 4:8] = 0, 1
    expected = getattr(reference, f"adjust_{name}")(images, factor) * 255
    factors, steps = torch.full((2, 1, 1, 1), factor), hue_steps(factor) if name == "hue" else 0
    changed = change(images * 255, NAMES.index(name), factors, steps)
    torch.testing.assert_close(changed, expected, atol=0.01, rtol=0)


def test_each_image_gets_its_own_factors_in_its_own_order():
    images = torch.rand(3, 3, 16, 16)
    factors = torch.tensor([[1.3, 0.7, 1.2, 0.1], [0.8, 1.4, 0.5, -0.05], [0.9, 0.6, 0.7, 0.02]])
    drawn = Jitters(factors, torch.tensor([[3, 1, 0, 2], [0, 1, 2, 3], [0, 3, 2, 1]]))
    changed = jitter(images * 255, drawn)
    for row in range(3):
        expected = images[row]
        for index in drawn.order[row].tolist():
            expected = getattr(reference, f"adjust_{NAMES[index]}")(expected, float(factors[row, index]))
        torch.testing.assert_close(changed[row], expected * 255, atol=0.05, rtol=0)


def test_a_warp_is_torchvisions_steps_one_after_the_other():
    images, size = pixels(), 32
    warps = Warps(
        torch.tensor([[0, 0, 48, 40], [5, 7, 30, 20], [10, 0, 25, 33]]),
        torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0]]),
        torch.tensor([0.0, 30.0, -45.0]),
        torch.tensor([0.0, -20.0, 40.0]),
    )
    maps = maps_of(warps, size, images.device)
    warped = warp(images, maps, torch.empty(3, 3, size, size))
    for row, (left, top, width, height) in enumerate(warps.crop.tolist()):
        expected = reference.resized_crop(images[row], top, left, height, width, [size, size], antialias=True)
        expected = reference.hflip(expected) if warps.flip[row, 0] < 0 else expected
        expected = reference.vflip(expected) if warps.flip[row, 1] < 0 else expected
        for angle in (warps.rotation[row], warps.affine[row]):
            expected = reference.rotate(expected, float(angle))
        difference = (warped[row] - expected.float()).abs()
        # Of two rotations each image of torchvision's is rounded to the nearest pixel twice, here once.
        once = warps.affine[row] == 0
        assert difference.median() <= 1
        assert difference.max() <= 1 if once else (difference > 25).float().mean() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("strengths", [(0.0, 0.0, 0.0, 0.0), (0.4, 0.4, 0.4, 0.5)])
def test_the_cpus_kernel_makes_of_the_same_draws_what_the_batches_make(strengths, monkeypatch, caplog):
    images, made = pixels(60), []  # enough for all 24 orders of the changes
    for numba in (True, False):
        monkeypatch.setattr(chain, "has_numba", lambda numba=numba: numba)
        torch.manual_seed(3)
        made.append(augment(images, 32, 45.0, strengths))
    levels = (made[0] - made[1]).abs() * 255 * torch.tensor(STD)[:, None, None]
    # A crop is resampled in integers by the one and in floats by the other: a level apart, which a change multiplies.
    assert (levels > 4).float().mean() < 1e-3 and levels.mean() < 0.2


def test_draws_have_the_distributions_of_torchvision():
    torch.manual_seed(0)
    warps, drawn = draw_warps(NUM_DRAWS, 40, 48, 45.0), draw_jitters(NUM_DRAWS, (0.4, 0.3, 0.2, 0.1))
    picture = torch.zeros(3, 40, 48)
    boxes = [RandomResizedCrop.get_params(picture, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(NUM_DRAWS)]
    expected = torch.tensor(boxes).float()[:, [1, 0, 3, 2]]
    for mine, theirs in zip(warps.crop.float().T, expected.T, strict=True):
        assert abs(mine.mean() - theirs.mean()) < 5 * theirs.std() / math.sqrt(NUM_DRAWS) * math.sqrt(2)
        assert float(mine.std()) == pytest.approx(float(theirs.std()), rel=0.08)
    assert (warps.crop[:, :2] + warps.crop[:, 2:]).amax(0).tolist() == [48, 40] and warps.crop.min() >= 0
    for angles in (warps.rotation, warps.affine):
        assert -45 <= angles.min() < -44 and 44 < angles.max() <= 45 and abs(angles.mean()) < 2
    assert warps.flip.unique().tolist() == [-1, 1] and abs(warps.flip.mean()) < 0.05
    bounds = torch.tensor([[0.6, 1.4], [0.7, 1.3], [0.8, 1.2], [-0.1, 0.1]])
    assert torch.allclose(drawn.factors.amin(0), bounds[:, 0], atol=0.01)
    assert torch.allclose(drawn.factors.amax(0), bounds[:, 1], atol=0.01)
    assert len(drawn.order.unique(dim=0)) == 24


def test_every_image_of_a_batch_is_drawn_for_itself_and_the_seed_repeats_it(monkeypatch):
    monkeypatch.setattr(chain, "has_numba", lambda: False)  # which takes seconds to compile the CPU's kernel
    images = pixels(1).repeat(6, 1, 1, 1)
    torch.manual_seed(3)
    first = augment(images, 32, 45.0, (0.4, 0.4, 0.4, 0.1))
    torch.manual_seed(3)
    assert torch.equal(augment(images, 32, 45.0, (0.4, 0.4, 0.4, 0.1)), first)
    assert all(not torch.equal(first[one], first[two]) for one in range(6) for two in range(one))
    assert first.shape == (6, 3, 32, 32) and first.dtype == torch.float32
    assert torch.equal(images, pixels(1).repeat(6, 1, 1, 1))
    for values, mean, std in zip(first.unbind(1), MEAN, STD, strict=True):
        assert values.min() == pytest.approx(-mean / std, abs=1e-5)  # black, from beyond a frame
        assert values.max() <= (1 - mean) / std + 1e-5


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("strengths", [(0.0, 0.0, 0.0, 0.0), (0.4, 0.4, 0.4, 0.1)])
def test_a_gpu_makes_of_the_same_draws_what_a_cpu_makes(strengths):
    images = pixels(8)
    made = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(3)
        made.append(augment(images.to(device), 32, 45.0, strengths).cpu())
    # A level is at most 0.0175; where a position is rounded to the other pixel, the picture is smooth.
    assert ((made[0] - made[1]).abs() > 0.05).float().mean() < 0.01
