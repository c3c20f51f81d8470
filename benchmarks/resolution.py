"""How much does it cost to crop from small files, and is stage 1 to blame? Three trainings of miniImageNet's base classes.

    python benchmarks/resolution.py [--data-root DATA] [--device cuda] [--classes 15] [--epochs 16] [--record results]

Pictures are seen at half their stored size, 42 pixels, so that there is something to lose:

- cropped from the stored 84 pixels, by a training loop of plain PyTorch that shares no code with cecil;
- the same, cropped from pictures that were shrunk to 42 pixels beforehand;
- the latter by cecil's own stage 1.

The first two differ by what the size of the files is worth. The last two should agree. Accuracy is on the base classes' test pictures;
nothing is chosen by it.
"""

import argparse
import math
import random
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from common import record, shown
from torch import Tensor, nn

from cecil.data import benchmarks
from cecil.data.images import ImageSet
from cecil.methods.network import Network
from cecil.nn.prototypes import class_means
from cecil.recipes import official
from cecil.stages.loop import Runtime

SEEN = 42  # pixels that the network sees
RESIZED = 46  # pixels of which the test view takes the centre
BATCH = 64


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        changes = stride > 1 or inside != outside
        self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.path(x) + self.short(x))


def resnet18() -> nn.Module:
    """The ordinary one, up to its features."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    net = nn.Sequential(*stem, *(Block(*width) for width in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def scaled(picture: Tensor, size: int) -> Tensor:
    return F.interpolate(picture[None].float(), (size, size), mode="bilinear", antialias=True, align_corners=False)[0]


def random_crop(picture: Tensor) -> Tensor:
    """A box of 8 to 100 % of the area and an aspect of 3/4 to 4/3, scaled, mirrored every other time."""
    height, width = picture.shape[1:]
    for _ in range(10):
        area, ratio = height * width * random.uniform(0.08, 1), math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = random.randint(0, height - h), random.randint(0, width - w)
            picture = picture[:, top : top + h, left : left + w]
            break
    crop = scaled(picture, SEEN)
    return crop.flip(2) if random.random() < 0.5 else crop


def centre(picture: Tensor) -> Tensor:
    edge = (RESIZED - SEEN) // 2
    return scaled(picture, RESIZED)[:, edge : edge + SEEN, edge : edge + SEEN]


def pixels_of(images: ImageSet) -> Tensor:
    """(n, 3, height, width) bytes."""
    if not isinstance(images.storage, Tensor):
        raise SystemExit("these pictures are of several sizes: this comparison wants miniImageNet at 84 pixels")
    return images.storage[images.rows]


def by_plain_pytorch(train: ImageSet, test: ImageSet, epochs: int, device: torch.device) -> float:
    """Stage 1 as a page of plain code; the accuracy of its class means on test pictures, in percent."""
    torch.manual_seed(0)
    random.seed(0)
    mean, std = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    net = resnet18().to(device, memory_format=torch.channels_last)
    rows = nn.Parameter(torch.randn(len(train.class_names), 512, device=device) / math.sqrt(512))
    sgd = torch.optim.SGD([*net.parameters(), rows], lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    rates = torch.optim.lr_scheduler.MultiStepLR(sgd, [epochs // 2, epochs * 3 // 4], 0.1)
    pixels, labels = pixels_of(train).cpu(), train.labels.cpu()

    def batch_of(views: list[Tensor]) -> Tensor:
        return ((torch.stack(views) / 255 - mean) / std).to(device, memory_format=torch.channels_last)

    for _ in range(epochs):
        net.train()
        order = torch.randperm(len(pixels))
        for chosen in order[: len(order) // BATCH * BATCH].view(-1, BATCH):
            features = net(batch_of([random_crop(pixels[i]) for i in chosen]))
            loss = F.cross_entropy(16 * F.normalize(features) @ F.normalize(rows).T, labels[chosen].to(device))
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        rates.step()
    net.eval()

    @torch.no_grad()
    def embed(images: Tensor) -> Tensor:
        return torch.cat([net(batch_of([centre(one) for one in part])) for part in images.split(500)]).cpu()

    return accuracy(embed(pixels), labels, embed(pixels_of(test).cpu()), test.labels.cpu())


def by_cecil(train: ImageSet, test: ImageSet, epochs: int, device: torch.device) -> float:
    """The same by cecil's stage 1."""
    base = official(benchmarks.find("miniimagenet"), "decoupled-cosine")
    pretrain = replace(base.pretrain, epochs=epochs, milestones=(epochs // 2, epochs * 3 // 4), batch=BATCH)
    network = Network(replace(base, transform=replace(base.transform, size=SEEN, resize=RESIZED), pretrain=pretrain), Runtime(device))
    network.fit(train.to(device), "cosine", 0)
    features = [network.embed(images.to(device)).cpu() for images in (train, test)]
    return accuracy(features[0], train.labels.cpu(), features[1], test.labels.cpu())


def accuracy(train: Tensor, train_labels: Tensor, test: Tensor, labels: Tensor) -> float:
    means = class_means(train, train_labels, int(train_labels.max()) + 1)
    return 100 * float((F.normalize(test) @ F.normalize(means).T).argmax(1).eq(labels).float().mean())


def shrunk(images: ImageSet) -> ImageSet:
    """Stored at the size that is seen."""
    small = F.interpolate(pixels_of(images).float(), (SEEN, SEEN), mode="bicubic", antialias=True, align_corners=False)
    return ImageSet.of(small.round().clamp(0, 255).byte(), images.labels, images.class_names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--classes", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    task = benchmarks.load("miniimagenet", args.data_root)
    classes = task.split.sessions[0].classes[: args.classes]
    train, test = (images.only(classes).alone() for images in (task.split.sessions[0].of(task.train), task.test))
    arms = {
        "plain PyTorch, cropped from 84 pixels": lambda: by_plain_pytorch(train, test, args.epochs, args.device),
        "plain PyTorch, cropped from 42 pixels": lambda: by_plain_pytorch(shrunk(train), shrunk(test), args.epochs, args.device),
        "cecil's stage 1, cropped from 42 pixels": lambda: by_cecil(shrunk(train), shrunk(test), args.epochs, args.device),
    }
    rows = [shown({"training": name, "test accuracy %": arm()}) for name, arm in arms.items()]
    about = {"classes": args.classes, "epochs": args.epochs, "train pictures": len(train), "test pictures": len(test)}
    record("resolution", args.device, rows, about, args.record)


if __name__ == "__main__":
    main()
