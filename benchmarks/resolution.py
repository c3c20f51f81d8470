"""Why is miniImageNet below the published rows? Stage 1 of torchvision's parts alone, on the same files and on worse ones.

    python benchmarks/resolution.py --data-root DATA [--device cuda] [--epochs 40] [--record results]

Network, transforms and reading of files are torchvision's and Pillow's; of fewmore there is one arm, its own stage 1.

- Seen at 84 pixels from the files as they are (84 pixels): should agree with fewmore's stage 1, if that is not to blame.
- Seen at 42 pixels from the same files; from files of 42 pixels; from files of 42 pixels that were once saved as lossy WebP. The first
  has something to lose, as a crop from a file of the published size has at 84: the difference is what small files cost.

Accuracy is on the base classes' test images, by class means of the training images; nothing is chosen by it. Needs torchvision.
"""

import argparse
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
from common import record, shown
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
    """One training: how large images are seen, and what is done to the files beforehand."""

    seen: int
    stored: int
    lossy: bool = False
    by_fewmore: bool = False

    @property
    def resized(self) -> int:
        """The size of which testing takes the centre."""
        return round(self.seen * 92 / 84)


ARMS = (
    Arm(seen=84, stored=84),
    Arm(seen=84, stored=84, by_fewmore=True),
    Arm(seen=42, stored=84),
    Arm(seen=42, stored=42),
    Arm(seen=42, stored=42, lossy=True),
)


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Decoded images under a transform."""

    def __init__(
        self,
        images: list[Image.Image],
        labels: list[int],
        transform: Callable[[Image.Image], Tensor],
    ) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def read(root: Path, part: str, arm: Arm) -> tuple[list[Image.Image], list[int]]:
    """The base classes' images of a part (train, test), as the arm stores them."""
    folder = root / "miniimagenet"
    with open(folder / "split" / f"{part}.csv", newline="") as lines:
        rows = [(row["filename"], row["label"]) for row in csv.DictReader(lines)]
    classes = list(dict.fromkeys(label for _, label in rows))[:BASE]
    chosen = [(name, classes.index(label)) for name, label in rows if label in classes]
    return [
        stored(Image.open(folder / "images" / name).convert("RGB"), arm) for name, _ in chosen
    ], [label for _, label in chosen]


def stored(image: Image.Image, arm: Arm) -> Image.Image:
    if image.size != (arm.stored, arm.stored):
        image = image.resize((arm.stored, arm.stored), Image.Resampling.BICUBIC)
    if arm.lossy:
        file = io.BytesIO()
        image.save(file, "webp", quality=WEBP_QUALITY)
        image = Image.open(file).convert("RGB")
    return image


def by_torchvision(arm: Arm, root: Path, epochs: int, device: torch.device, workers: int) -> float:
    """Stage 1 as a page of plain code; test accuracy in percent."""
    from torchvision import transforms
    from torchvision.models import resnet18

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    end = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    training = transforms.Compose(
        [transforms.RandomResizedCrop(arm.seen), transforms.RandomHorizontalFlip(), *end]
    )
    testing = transforms.Compose(
        [transforms.Resize([arm.resized, arm.resized]), transforms.CenterCrop(arm.seen), *end]
    )
    train, test = (read(root, part, arm) for part in ("train", "test"))

    def batches(
        of: tuple[list[Image.Image], list[int]],
        transform: Callable[[Image.Image], Tensor],
        train: bool,
    ) -> DataLoader[tuple[Tensor, int]]:
        return DataLoader(
            ImageFiles(*of, transform),
            BATCH,
            shuffle=train,
            num_workers=workers,
            persistent_workers=train,
            pin_memory=True,
        )

    net = resnet18()
    net.fc = nn.Identity()
    net = net.to(device, memory_format=torch.channels_last)
    rows = nn.Parameter(torch.randn(BASE, 512, device=device) / math.sqrt(512))
    sgd = torch.optim.SGD(
        [*net.parameters(), rows], lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    rates = torch.optim.lr_scheduler.MultiStepLR(sgd, [epochs * 40 // 100, epochs * 70 // 100], 0.1)
    learning = batches(train, training, train=True)

    def features(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return net(
                images.to(device, memory_format=torch.channels_last, non_blocking=True)
            ).float()

    for _ in range(epochs):
        net.train()
        for images, labels in learning:
            scores = TEMPERATURE * F.normalize(features(images)) @ F.normalize(rows).T
            loss = F.cross_entropy(scores, labels.to(device, non_blocking=True))
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        rates.step()
    net.eval()
    with torch.no_grad():
        embedded = [
            torch.cat([features(p).cpu() for p, _ in batches(part, testing, train=False)])
            for part in (train, test)
        ]
    return accuracy(embedded[0], torch.tensor(train[1]), embedded[1], torch.tensor(test[1]))


def by_fewmore(arm: Arm, root: Path, epochs: int, device: torch.device) -> float:
    """The same by fewmore."""
    from fewmore.data import benchmarks
    from fewmore.methods.network import Network
    from fewmore.research.recipes import official
    from fewmore.training.loop import Runtime, enable_cudnn_benchmark

    enable_cudnn_benchmark(device)
    benchmark = benchmarks.find("miniimagenet")
    recipe = official(benchmark, "decoupled-cosine")
    recipe = replace(
        recipe,
        transform=replace(recipe.transform, size=arm.seen, resize=arm.resized),
        pretrain=replace(
            recipe.pretrain, epochs=epochs, milestones=(epochs * 40 // 100, epochs * 70 // 100)
        ),
    )
    task = benchmarks.load("miniimagenet", root)
    first = task.split.sessions[0]
    train, test = first.of(task.train).compact(), task.test.only(first.classes).compact()
    network = Network(recipe, Runtime(device))
    network.fit(train.to(device), "cosine", 0)
    features = [network.embed(images.to(device)).cpu() for images in (train, test)]
    return accuracy(features[0], train.labels.cpu(), features[1], test.labels.cpu())


def accuracy(train: Tensor, train_labels: Tensor, test: Tensor, labels: Tensor) -> float:
    means = torch.stack([train[train_labels == k].mean(0) for k in range(BASE)])
    return 100 * float(
        (F.normalize(test) @ F.normalize(means).T).argmax(1).eq(labels).float().mean()
    )


def run(arm: Arm, root: Path, epochs: int, device: torch.device, workers: int) -> dict[str, object]:
    found = (
        by_fewmore(arm, root, epochs, device)
        if arm.by_fewmore
        else by_torchvision(arm, root, epochs, device, workers)
    )
    files = f"{arm.stored} pixels" + (", lossy once more" if arm.lossy else "")
    return {
        "stage 1 of": "fewmore" if arm.by_fewmore else "torchvision",
        "seen at": f"{arm.seen} pixels",
        "files of": files,
        "test accuracy %": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument(
        "--workers", type=int, default=3, help="processes that crop, for each training"
    )
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    with ProcessPoolExecutor(len(ARMS), mp_context=get_context("spawn")) as pool:
        pending = [
            pool.submit(run, arm, args.data_root, args.epochs, args.device, args.workers)
            for arm in ARMS
        ]
        for one in as_completed(pending):
            shown(one.result())
    record(
        "resolution",
        args.device,
        [one.result() for one in pending],
        {"classes": BASE, "epochs": args.epochs},
        args.record,
    )


if __name__ == "__main__":
    main()
