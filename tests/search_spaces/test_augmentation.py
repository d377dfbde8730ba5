"""The batched augmentation: each change is torchvision's at the same parameters, each image has its own draws."""

import math

import pytest
import torch
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as reference

from search_spaces.augmentation import jitter as jitters
from search_spaces.augmentation.chain import augment
from search_spaces.augmentation.jitter import JitterDraws, Jitters, jitter
from search_spaces.augmentation.warp import WarpDraws, Warps, warp

NUM_DRAWS = 4000


def pixels(num=3, height=40, width=48):
    """Smooth pictures, so that a pixel more or less to one side is no large difference."""
    torch.manual_seed(0)
    coarse = torch.rand(num, 3, 6, 6)
    fine = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic").clamp(0, 1)
    return (fine * 255).round().to(torch.uint8)


@pytest.mark.parametrize(
    ("name", "factor"),
    [(name, factor) for name in ("brightness", "contrast", "saturation") for factor in (0.0, 0.6, 1.0, 1.4)]
    + [("hue", turn) for turn in (-0.5, -0.1, 0.0, 0.1, 0.5)],
)
def test_a_change_of_colour_is_torchvisions(name, factor):
    images = torch.rand(2, 3, 16, 16)
    images[0, :, :4] = images[0, :1, :4]  # greys have no hue
    changed = getattr(jitters, name)(images * 255, torch.full((2, 1, 1, 1), factor))
    expected = getattr(reference, f"adjust_{name}")(images, factor) * 255
    torch.testing.assert_close(changed, expected, atol=0.01, rtol=0)


def test_each_image_gets_its_own_factors_in_its_own_order():
    images = torch.rand(2, 3, 16, 16)
    drawn = Jitters(
        torch.tensor([[1.3, 0.7, 1.2, 0.1], [0.8, 1.4, 0.5, -0.1]]), torch.tensor([[3, 1, 0, 2], [0, 1, 2, 3]])
    )
    changed = jitter(images * 255, drawn)
    names = ("brightness", "contrast", "saturation", "hue")
    for row in range(2):
        expected = images[row]
        for index in drawn.order[row].tolist():
            expected = getattr(reference, f"adjust_{names[index]}")(expected, float(drawn.factors[row, index]))
        torch.testing.assert_close(changed[row], expected * 255, atol=0.05, rtol=0)


def test_a_warp_is_torchvisions_steps_one_after_the_other():
    images, size = pixels(), 32
    warps = Warps(
        torch.tensor([[0.0, 0.0, 48.0, 40.0], [5.0, 7.0, 30.0, 20.0], [10.0, 0.0, 25.0, 33.0]]),
        torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0]]),
        torch.tensor([0.0, 30.0, -45.0]),
        torch.tensor([0.0, -20.0, 40.0]),
    )
    warped = warp(images.clone(), warps, size)
    for row, (left, top, width, height) in enumerate(warps.crop.int().tolist()):
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


def test_draws_have_the_distributions_of_torchvision():
    torch.manual_seed(0)
    shape = torch.Size([NUM_DRAWS, 3, 40, 48])
    warps, drawn = WarpDraws(32)(shape), JitterDraws(0.4, 0.3, 0.2, 0.1)(shape)
    picture = torch.zeros(3, 40, 48)
    boxes = [RandomResizedCrop.get_params(picture, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(NUM_DRAWS)]
    expected = torch.tensor(boxes).float()[:, [1, 0, 3, 2]]
    for mine, theirs in zip(warps.crop.T, expected.T, strict=True):
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


def test_every_image_of_a_batch_is_drawn_for_itself_and_the_seed_repeats_it():
    images = pixels(1).repeat(6, 1, 1, 1)
    torch.manual_seed(3)
    first = augment(images, 32, 45.0, (0.4, 0.4, 0.4, 0.1))
    torch.manual_seed(3)
    assert torch.equal(augment(images, 32, 45.0, (0.4, 0.4, 0.4, 0.1)), first)
    assert all(not torch.equal(first[one], first[two]) for one in range(6) for two in range(one))
    assert first.shape == (6, 3, 32, 32) and first.dtype == torch.float32 and 0 <= first.min() and first.max() <= 255
    assert torch.equal(images, pixels(1).repeat(6, 1, 1, 1))
