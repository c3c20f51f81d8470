"""Show what test features are worth that depend on the other images of the batch.

    python benchmarks/batch_leak.py [--record results]

Made-up features stand for those of a trained network: every image has two views, the second one
rotated, and a class is scored by the mean cosine of both views to its class means. The leak mixes
the second view of an image half and half with that of another image of the batch, as a program
read for docs/published.md does at test time. Where test images come in the order of their classes,
that other image is of the same class, so the batch gives the label away; where they are shuffled,
it is of another class.
"""

import torch
from common import Row, make_parser, print_row, record
from torch import Tensor
from torch.nn import functional as F

from fewmore.nn.prototypes import class_means
from fewmore.random import derive_seed
from fewmore.research.integrity import CPU_TOLERANCE, sample_of

CLASSES, PER_CLASS, TRAINED, DIM = 100, 100, 500, 64
BATCH = 100  # as many as CIFAR100 has test images of a class
NOISE = 2.8  # standard deviation around a class, where class means are a standard normal
SHARED = 0.5  # share of the noise's variance that the two views of an image have in common


def make_views(means: Tensor, per_class: int, generator: torch.Generator) -> Tensor:
    """Return the features of two views of each image, (images, 2, dim), class by class."""
    images = len(means) * per_class
    common = torch.randn(images, 1, DIM, generator=generator) * SHARED**0.5
    own = torch.randn(images, 2, DIM, generator=generator) * (1 - SHARED) ** 0.5
    return means.repeat_interleave(per_class, 0)[:, None] + NOISE * (common + own)


def mix_second_views(views: Tensor, generator: torch.Generator) -> Tensor:
    """Mix the second view of each image with that of another image of the batch."""
    other = torch.randint(1, len(views), (len(views),), generator=generator)
    other = (torch.arange(len(views)) + other) % len(views)  # never the image itself
    mixed = (views[:, 1] + views[other, 1]) / 2
    return torch.stack([views[:, 0], mixed], 1)


def scores_of(views: Tensor, prototypes: Tensor) -> Tensor:
    """Return the mean cosine of the views to each class."""
    return (F.normalize(views, dim=-1) @ F.normalize(prototypes, dim=-1).T).mean(1)


def scores_in_batches(
    views: Tensor, prototypes: Tensor, order: Tensor, generator: torch.Generator
) -> Tensor:
    """Score images in batches of an order, with mixed second views; in the images' own order."""
    scores = torch.empty(len(views), len(prototypes))
    for batch in order.split(BATCH):
        scores[batch] = scores_of(mix_second_views(views[batch], generator), prototypes)
    return scores


def measure(seed: int) -> Row:
    """Return the accuracy without the leak, in class order and shuffled, in percent."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "batch leak"))
    means = torch.randn(CLASSES, DIM, generator=generator)
    trained = make_views(means, TRAINED, generator).mean(1)
    trained_labels = torch.arange(CLASSES).repeat_interleave(TRAINED)
    prototypes = class_means(trained, trained_labels, CLASSES)
    views = make_views(means, PER_CLASS, generator)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)

    def accuracy(scores: Tensor) -> float:
        return 100 * float((scores.argmax(1) == labels).float().mean())

    in_order = scores_in_batches(views, prototypes, torch.arange(len(views)), generator)
    shuffled = torch.randperm(len(views), generator=generator)
    mixed = scores_in_batches(views, prototypes, shuffled, generator)
    # The check of a run: some images are scored again in a batch of their own.
    sample = sample_of(torch.arange(len(views)), generator)
    again = scores_of(mix_second_views(views[sample], generator), prototypes)
    change = (again - mixed[sample]).abs().amax(1) / mixed[sample].abs().max()
    return {
        "seed": seed,
        "honest %": accuracy(scores_of(views, prototypes)),
        "batches in class order %": accuracy(in_order),
        "shuffled batches %": accuracy(mixed),
        "images scored again": len(sample),
        "of them, other scores": int((change > CPU_TOLERANCE).sum()),
    }


def main() -> None:
    """Measure three seeds and record them."""
    args = make_parser(__doc__).parse_args()
    rows = [print_row(measure(seed)) for seed in range(3)]
    about: Row = {"classes": CLASSES, "test images of a class": PER_CLASS, "batch": BATCH}
    record("batch_leak", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
