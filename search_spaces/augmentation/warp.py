"""Random resized crop, flips, rotation and affine of a batch, with parameters drawn for each image.

Pixels are resampled as torchvision's transforms of these names do it, bilinearly with antialiasing for the crop and
from the nearest pixel for the rotations, but twice in the place of five times: flips and rotations are one matrix.
What a rotation brings in from outside its frame is black.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from kornia.augmentation.random_generator import AffineGenerator, ResizedCropGenerator
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Warps:
    """The parameters of a batch of N images.

    Args:
        crop: (N, 4): left, top, width and height of what is enlarged to the output, in pixels of the input.
        flip: (N, 2): -1 where the crop is mirrored left to right or top to bottom, else 1.
        rotation: (N,): degrees, counter-clockwise, about the centre of the flipped crop.
        affine: (N,): degrees of the second rotation, of what the first one left in the frame.
    """

    crop: Tensor
    flip: Tensor
    rotation: Tensor
    affine: Tensor

    def __getitem__(self, rows: slice) -> Warps:
        return Warps(self.crop[rows], self.flip[rows], self.rotation[rows], self.affine[rows])


class WarpDraws:
    """Draws what torchvision's RandomResizedCrop, both flips, RandomRotation and RandomAffine draw, for each image.

    Args:
        size: the output's height and width in pixels.
        degrees: the largest angle of the rotation and of the affine.
        scale, ratio: the crop's share of the image's area, and its width by its height.
    """

    def __init__(
        self,
        size: int,
        degrees: float = 45.0,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        self.crops = ResizedCropGenerator((size, size), scale, ratio)
        self.angles = AffineGenerator(degrees)

    def __call__(self, shape: torch.Size) -> Warps:
        """Draws from torch's stream on the CPU for a batch of this shape, (N, 3, H, W)."""
        corners = self.crops(shape)["src"]  # (N, 4, 2), clockwise from the top left, the last pixels included
        crop = torch.cat([corners[:, 0], corners[:, 2] - corners[:, 0] + 1], dim=1).float()
        flip = 1 - 2 * torch.randint(2, (shape[0], 2)).float()
        return Warps(crop, flip, self.angles(shape)["angle"], self.angles(shape)["angle"])


def warp(images: Tensor, warps: Warps, size: int) -> Tensor:
    """(N, C, H, W) uint8 pixels as (N, C, size, size) float32 ones, still 0 to 255."""
    device = images.device
    crops = resized_crops(images, warps.crop, size)
    # Where the output's pixels lie in its frame, -1 to 1; where they come from is worked out backwards.
    steps = (torch.arange(size, device=device) * 2 + 1) / size - 1
    second = rotations(warps.affine)
    columns = (warps.flip[:, :, None] * (rotations(warps.rotation) @ second)).mT.contiguous().to(device)
    # As complex numbers, x + iy: rows plus columns, with the two coordinates side by side as a grid has them.
    across, down = torch.view_as_complex(columns)[:, :, None].mul(steps).unbind(1)
    grid = torch.view_as_real(across[:, None, :] + down[:, :, None])
    warped = functional.grid_sample(crops, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return warped.mul_(in_frame(second.to(device), steps)[:, None])


def resized_crops(images: Tensor, crops: Tensor, size: int) -> Tensor:
    """(N, C, size, size) float32: of each image the part left, top, width, height."""
    if images.device.type != "cpu":
        images = images.float()  # a CPU has a faster kernel for bytes, a GPU none
    boxes = [[int(value) for value in crop] for crop in crops.tolist()]
    parts = [
        functional.interpolate(
            images[row : row + 1, :, top : top + height, left : left + width],
            size=(size, size),
            mode="bilinear",
            antialias=True,
        )
        for row, (left, top, width, height) in enumerate(boxes)
    ]
    return torch.cat(parts).float()


def rotations(degrees: Tensor) -> Tensor:
    """(N, 2, 2): from where in a frame a pixel comes that is turned counter-clockwise; y points down."""
    radians = degrees * (math.pi / 180)
    cos, sin = radians.cos(), radians.sin()
    return torch.stack([cos, -sin, sin, cos], dim=1).view(-1, 2, 2)


def in_frame(matrices: Tensor, steps: Tensor) -> Tensor:
    """(N, size, size): 1 where a pixel comes from within the frame, else 0; bools would take 4 times as long."""
    along = matrices[..., None] * steps  # (N, 2, 2, size)
    x, y = (along[:, axis, 0, None, :] + along[:, axis, 1, :, None] for axis in range(2))
    beyond = torch.maximum(x.abs_(), y.abs_()).sub_(1)
    return beyond.mul_(-1e6).clamp_(0, 1)
