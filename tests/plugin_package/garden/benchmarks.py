"""Draw stripes: every class has an angle and a colour of its own."""

import numpy as np

from fewmore.data.benchmarks import Benchmark, BenchmarkImages, ImageRequest
from fewmore.data.from_python import image_set
from fewmore.data.plans import SessionPlan
from fewmore.data.transform import Transform

NAMES = [f"stripes-{number}" for number in range(8)]
SIDE = 12


def draw(per_class: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Draw images of all classes, in the order of the classes."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE]
    images, labels = [], []
    for number, name in enumerate(NAMES):
        angle = np.pi * number / len(NAMES)
        for phase in random.uniform(0, 2 * np.pi, per_class):
            wave = np.sin(x * np.cos(angle) + y * np.sin(angle) + phase)
            colour = 128 + 60 * np.cos(number + np.arange(3))
            noise = random.normal(0, 8, (SIDE, SIDE, 3))
            images.append(colour + 50 * wave[..., None] + noise)
            labels.append(name)
    return np.stack(images).clip(0, 255).astype(np.uint8), labels


def load(request: ImageRequest) -> BenchmarkImages:
    """Return the training and the test images."""
    train, test = draw(10, seed=0), draw(5, seed=1)
    return BenchmarkImages(
        image_set(*train, NAMES, request.size), image_set(*test, NAMES, request.size)
    )


STRIPES = Benchmark(
    name="stripes",
    title="Stripes of eight angles",
    classes=8,
    base=4,
    way=3,
    shot=5,
    backbone="resnet8",
    pretrained=False,
    transform=Transform(SIDE, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "pad", pad=1, flip=False),
    plan=(
        SessionPlan(tuple(NAMES[:4])),
        SessionPlan(tuple(NAMES[4:7]), 5),
        SessionPlan(tuple(NAMES[7:]), 2),
    ),
    load=load,
)
