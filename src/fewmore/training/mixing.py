"""Mix the images of a batch with each other, and their labels alike: mixup and CutMix.

Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization, ICLR 2018,
https://arxiv.org/abs/1710.09412; Yun, Han, Oh, Chun, Choe, Yoo: CutMix: Regularization Strategy to
Train Strong Classifiers with Localizable Features, ICCV 2019, https://arxiv.org/abs/1905.04899.

An image's partner is the one before it in the batch, so batches must be shuffled, as those of the
training loop are. Each image has a share of its own. With one share for a whole batch, as in the
authors' programs, the difficulty of the steps differs more, and on a GPU it saves nothing.

n: images   s: side of the view, in pixels
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.errors import ConfigError


@dataclass(frozen=True)
class Mixed:
    """Hold mixed images, the labels of both images that each is made of, and their shares."""

    view: Tensor  # (n, 3, s, s)
    labels: Tensor  # (n,) of the images themselves
    partner_labels: Tensor  # (n,)
    share: Tensor  # (n,) of the images themselves, λ in both papers; the partner's is 1 − λ

    def cross_entropy(self, logits: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Compute the mean over images of the cross entropies with both labels, by share."""
        own, partner = (
            F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
            for labels in (self.labels, self.partner_labels)
        )
        return (self.share * own + (1 - self.share) * partner).mean()


def mixup(view: Tensor, labels: Tensor, alpha: float, generator: Generator) -> Mixed:
    """Blend each image of a batch with its partner, by shares sampled from Beta(alpha, alpha)."""
    share = sample_beta(len(view), alpha, generator)
    weight = share[:, None, None, None]
    blended = weight * view + (1 - weight) * partners(view)
    return Mixed(blended, labels, partners(labels), share)


def cutmix(view: Tensor, labels: Tensor, alpha: float, generator: Generator) -> Mixed:
    """Replace a box of each image by the same box of its partner.

    The box has the shape of the image, an area of 1 − λ with λ from Beta(alpha, alpha), and a
    centre anywhere. What lies beyond the edges is cut off, and an image's share is what remains of
    it.
    """
    share = sample_beta(len(view), alpha, generator)
    centre = torch.rand(2, len(view), device=view.device, generator=generator)
    height, width = view.shape[2:]
    top, bottom = _edges(height, share, centre[0])
    left, right = _edges(width, share, centre[1])
    y = torch.arange(height, device=view.device)[:, None]
    x = torch.arange(width, device=view.device)
    top_n, bottom_n, left_n, right_n = (e[:, None, None] for e in (top, bottom, left, right))
    inside = (y >= top_n) & (y < bottom_n) & (x >= left_n) & (x < right_n)
    pasted = torch.where(inside[:, None], partners(view), view)
    remaining = 1 - (bottom - top) * (right - left) / (height * width)
    return Mixed(pasted, labels, partners(labels), remaining)


MIXERS: dict[str, Callable[[Tensor, Tensor, float, Generator], Mixed]] = {
    "mixup": mixup,
    "cutmix": cutmix,
}


def partners(batch: Tensor) -> Tensor:
    """Return, at each place of a batch, what stands before it; before the first, the last."""
    return torch.cat([batch[-1:], batch[:-1]])


def sample_beta(count: int, alpha: float, generator: Generator) -> Tensor:
    """Sample from Beta(alpha, alpha) on the generator's device: (count,).

    Of two uniform numbers each, without rejections, so that a step that samples can be captured as
    a CUDA graph. With U and V uniform, t = √(U^(−1/α) − 1) · cos 2πV is Student's t with 2α degrees
    of freedom, divided by √(2α) (Bailey, Mathematics of Computation, 1994), and the distribution of
    (1 + t / √(1 + t²)) / 2 is Beta(α, α). Both fractions are expanded here, as t may overflow.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"alpha of mixup and CutMix must be a positive number, not {alpha}")
    uniform = torch.rand(2, count, device=generator.device, generator=generator)
    power = uniform[0] ** (1 / alpha)
    cosine = (2 * math.pi * uniform[1]).cos()
    rest = 1 - power
    ratio = cosine * rest.sqrt() / (cosine.square() * rest + power).sqrt()  # t / √(1 + t²)
    return ((1 + ratio) / 2).clamp(0, 1)


def _edges(size: int, share: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Return where boxes begin and end along a side of `size` pixels, (n,) each."""
    length = (size * (1 - share).sqrt()).floor()
    start = (size * centre).floor() - (length / 2).floor()
    return start.clamp(min=0), (start + length).clamp(max=size)
