"""Draw what the augmentations do to images of the built-in benchmark."""

from dataclasses import replace

import torch
from matplotlib.figure import Figure

from fewmore.data import glyphs
from fewmore.data.augment import test_view, train_view
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.data.transform import Transform

COLUMNS = 10
STILL = replace(BENCHMARKS["glyphs"].transform, pad=0)  # shows an augmentation by itself
JITTER = (0.4, 0.4, 0.4, 0.1)
ROWS: dict[str, Transform] = {
    "crop=mixed": replace(STILL, crop="mixed", pad=4, scale=(0.25, 1.0)),
    "policy=autoaugment-cifar10": replace(STILL, policy="autoaugment-cifar10"),
    "policy=autoaugment-imagenet": replace(STILL, policy="autoaugment-imagenet"),
    "policy=randaugment": replace(STILL, policy="randaugment"),
    "jitter=0.4,0.4,0.4,0.1": replace(STILL, jitter=JITTER),
    "grayscale=0.2": replace(STILL, grayscale=0.2),
    "cutout=8": replace(STILL, cutout=8),
}


def sheet() -> Figure:
    """Draw a row for each augmentation and a column for each image."""
    everything = glyphs.render("train", 1, seed=0)
    images = everything.select(torch.arange(COLUMNS) * (len(everything) // COLUMNS))
    positions = torch.arange(COLUMNS)
    views = {"the images": test_view(images, positions, STILL)}
    for name, transform in ROWS.items():
        generator = torch.Generator().manual_seed(0)
        views[name] = train_view(images, positions, transform, generator)
    figure = Figure(figsize=(COLUMNS * 0.34, len(views) * 0.34))
    for axes, (name, row) in zip(figure.subplots(len(views)), views.items(), strict=True):
        # Undo the normalization, and put the images side by side with a white line between them.
        mean, std = (torch.tensor(values)[:, None, None] for values in (STILL.mean, STILL.std))
        framed = torch.nn.functional.pad((row * std + mean).clamp(0, 1), (1, 1, 1, 1), value=1.0)
        axes.imshow(torch.cat(list(framed), 2).permute(1, 2, 0).numpy(), interpolation="nearest")
        axes.set_axis_off()
        axes.text(-6, STILL.size / 2, name, ha="right", va="center", fontsize=7)
    figure.subplots_adjust(0, 0, 1, 1, 0, 0)
    return figure
