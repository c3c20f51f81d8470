"""Test why miniImageNet is below the published rows: train stage 1 with torchvision's parts alone.

    python benchmarks/resolution.py --data-root DATA [--epochs 40] [--record results]

Network, transforms and decoding are torchvision's and Pillow's; one arm is fewmore's own stage 1.

- Trained at 84 pixels from the files as they are (84 pixels): should agree with fewmore's stage 1
  if that is not the cause.
- Trained at 42 pixels from the same files; from files of 42 pixels; from files of 42 pixels that
  were saved as lossy WebP before. Only the first can crop from files larger than its input, as the
  published runs could at 84 pixels: the difference is the cost of small files.

Accuracy is on the test images of the base classes, by class means of the training images; nothing
is chosen by it. Needs torchvision.
"""

import csv
import io
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Row, make_parser, print_row, record
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BASE = 60  # classes of the base session
BATCH = 128
TEMPERATURE = 16
WEBP_QUALITY = 75  # gives as many bytes a pixel as the images measured here once had
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Arm:
    """Describe a training: the input size, and how the files are stored beforehand."""

    seen: int
    stored: int
    lossy: bool = False
    by_fewmore: bool = False

    @property
    def resized(self) -> int:
        """Return the size to which test images are resized before the centre crop."""
        return round(self.seen * 92 / 84)


ARMS = (
    Arm(seen=84, stored=84),
    Arm(seen=84, stored=84, by_fewmore=True),
    Arm(seen=42, stored=84),
    Arm(seen=42, stored=42),
    Arm(seen=42, stored=42, lossy=True),
)


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Apply a transform to decoded images."""

    def __init__(
        self,
        images: list[Image.Image],
        labels: list[int],
        transform: Callable[[Image.Image], Tensor],
    ) -> None:
        self.images = images
        self.labels = labels
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


Samples = tuple[list[Image.Image], list[int]]


def read_samples(root: Path, part: str, arm: Arm) -> Samples:
    """Read the base classes' images of a part (train, test), as the arm stores them."""
    folder = root / "miniimagenet"
    with open(folder / "split" / f"{part}.csv", newline="") as lines:
        rows = [(row["filename"], row["label"]) for row in csv.DictReader(lines)]
    classes = list(dict.fromkeys(label for _, label in rows))[:BASE]
    images = []
    labels = []
    for name, label in rows:
        if label in classes:
            image = Image.open(folder / "images" / name).convert("RGB")
            images.append(stored(image, arm))
            labels.append(classes.index(label))
    return images, labels


def stored(image: Image.Image, arm: Arm) -> Image.Image:
    """Return an image as the arm stores it."""
    if image.size != (arm.stored, arm.stored):
        image = image.resize((arm.stored, arm.stored), Image.Resampling.BICUBIC)
    if arm.lossy:
        file = io.BytesIO()
        image.save(file, "webp", quality=WEBP_QUALITY)
        image = Image.open(file).convert("RGB")
    return image


def train_by_torchvision(
    arm: Arm, root: Path, epochs: int, device: torch.device, workers: int
) -> float:
    """Train stage 1 in plain code; return the test accuracy in percent."""
    from torchvision import transforms
    from torchvision.models import resnet18

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    end = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    train_view = transforms.Compose(
        [transforms.RandomResizedCrop(arm.seen), transforms.RandomHorizontalFlip(), *end]
    )
    test_view = transforms.Compose(
        [transforms.Resize([arm.resized, arm.resized]), transforms.CenterCrop(arm.seen), *end]
    )
    train = read_samples(root, "train", arm)
    test = read_samples(root, "test", arm)

    def batches(
        samples: Samples, transform: Callable[[Image.Image], Tensor], training: bool
    ) -> DataLoader[tuple[Tensor, int]]:
        return DataLoader(
            ImageFiles(*samples, transform),
            BATCH,
            shuffle=training,
            num_workers=workers,
            persistent_workers=training,
            pin_memory=True,
        )

    network = resnet18()
    network.fc = nn.Identity()
    network = network.to(device, memory_format=torch.channels_last)
    weights = nn.Parameter(torch.randn(BASE, 512, device=device) / math.sqrt(512))
    sgd = torch.optim.SGD(
        [*network.parameters(), weights], lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(sgd, milestones(epochs), 0.1)
    train_batches = batches(train, train_view, training=True)

    def embed(images: Tensor) -> Tensor:
        images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return network(images).float()

    for _ in range(epochs):
        network.train()
        for images, labels in train_batches:
            logits = TEMPERATURE * F.normalize(embed(images)) @ F.normalize(weights).T
            loss = F.cross_entropy(logits, labels.to(device, non_blocking=True))
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        train_features, test_features = (
            torch.cat(
                [embed(images).cpu() for images, _ in batches(samples, test_view, training=False)]
            )
            for samples in (train, test)
        )
    return accuracy(train_features, torch.tensor(train[1]), test_features, torch.tensor(test[1]))


def milestones(epochs: int) -> tuple[int, int]:
    """Return the epochs at which the learning rate falls, in the recipe's proportion."""
    return epochs * 40 // 100, epochs * 70 // 100


def train_by_fewmore(arm: Arm, root: Path, epochs: int, device: torch.device) -> float:
    """Train stage 1 by fewmore; return the test accuracy in percent."""
    from fewmore.data import benchmarks, loading
    from fewmore.methods.network import Network
    from fewmore.research.recipes import official
    from fewmore.training.device import prepare_device
    from fewmore.training.runtime import Runtime

    prepare_device(device)
    recipe = official(benchmarks.find("miniimagenet"), "decoupled-cosine")
    recipe = replace(
        recipe,
        transform=replace(recipe.transform, size=arm.seen, resize=arm.resized),
        pretrain=replace(recipe.pretrain, epochs=epochs, milestones=milestones(epochs)),
    )
    task = loading.load_task("miniimagenet", root)
    base = task.split.sessions[0]
    train = base.select_from(task.train).compact()
    test = task.test.select_classes(base.classes).compact()
    network = Network(recipe, Runtime(device))
    network.fit(train.to(device), "cosine", 0)
    train_features = network.embed(train.to(device)).cpu()
    test_features = network.embed(test.to(device)).cpu()
    return accuracy(train_features, train.labels.cpu(), test_features, test.labels.cpu())


def accuracy(
    train_features: Tensor, train_labels: Tensor, test_features: Tensor, test_labels: Tensor
) -> float:
    """Return the accuracy in percent of the cosine to class means."""
    means = torch.stack([train_features[train_labels == k].mean(0) for k in range(BASE)])
    cosine = F.normalize(test_features) @ F.normalize(means).T
    return 100 * float(cosine.argmax(1).eq(test_labels).float().mean())


def measure(arm: Arm, root: Path, epochs: int, device: torch.device, workers: int) -> Row:
    """Train one arm."""
    if arm.by_fewmore:
        percent = train_by_fewmore(arm, root, epochs, device)
    else:
        percent = train_by_torchvision(arm, root, epochs, device, workers)
    return {
        "stage 1 of": "fewmore" if arm.by_fewmore else "torchvision",
        "seen at": f"{arm.seen} pixels",
        "files of": f"{arm.stored} pixels" + (", lossy once more" if arm.lossy else ""),
        "test accuracy %": percent,
    }


def main() -> None:
    """Train all arms side by side, each in its own process."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--workers", type=int, default=3, help="loader processes per training")
    args = parser.parse_args()
    with ProcessPoolExecutor(len(ARMS), mp_context=get_context("spawn")) as pool:
        shared = (args.data_root, args.epochs, args.device, args.workers)
        pending = [pool.submit(measure, arm, *shared) for arm in ARMS]
        for future in as_completed(pending):
            print_row(future.result())
    rows = [future.result() for future in pending]
    about: Row = {"classes": BASE, "epochs": args.epochs}
    record("resolution", args.device, rows, about, args.record)


if __name__ == "__main__":
    main()
