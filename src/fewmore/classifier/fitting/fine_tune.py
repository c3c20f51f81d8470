"""Train a pretrained backbone further on the base images, within a time that the user gives.

What is used is the average of the weights before and after: trained on few classes alone, a network
forgets what others need (Wortsman et al.: Robust fine-tuning of zero-shot models, CVPR 2022,
https://arxiv.org/abs/2109.01903).

Half of the time goes into a trial: a third of the classes and a fifth of the other images are kept
from it, and the classifier on the tuned backbone has to beat the one on the backbone as it was, on
those images. The other half trains on all images, if it did. Whoever has to be sure that two
trainings give the same model does not use it: the number of steps depends on the machine.

n: images   C: classes
"""

import copy
import math
import time
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.classifier.classes import SupportSet
from fewmore.classifier.embedding import Embedder, Progress
from fewmore.classifier.fitting.base import NEVER, BaseFeatures
from fewmore.classifier.fitting.contest import is_proven
from fewmore.classifier.fitting.from_scratch import decoded_to_disk
from fewmore.classifier.fitting.frozen import fit_features
from fewmore.classifier.fitting.sessions import NEW_SHARE
from fewmore.classifier.heads import Scorer
from fewmore.classifier.inputs import LabeledImages
from fewmore.data.augment import train_view
from fewmore.data.images import ImageSet
from fewmore.data.transform import Transform
from fewmore.errors import ConfigError
from fewmore.nn.backbones import Backbone
from fewmore.nn.similarity import TEMPERATURE
from fewmore.random import derive_seed

BATCH = 16
SCALE = (0.4, 1.0)  # share of an image that a random crop shows
RATE = 1e-4  # AdamW's learning rate at the beginning; it falls to 0 over the training
SHARE = 0.5  # weight of the trained weights in their average with the original ones
MIN_GAIN = 1.0  # standard errors by which the average must win in the trial
SHOTS = 5  # images of each new class that are learnt in the trial
ONE_IN = 5  # one image in so many of each old class is held out in the trial
MIN_CLASSES = 6  # with fewer, standard errors over classes say nothing

UNITS = {"s": 1, "m": 60, "h": 3600}  # in seconds


def to_seconds(duration: str | float) -> float:
    """Return the seconds of a duration such as "10m", "90s" or "1.5h"; a number is in seconds."""
    text = str(duration).strip().lower()
    number, unit = (text[:-1], text[-1:]) if text[-1:] in UNITS else (text, "s")
    try:
        seconds = float(number) * UNITS[unit]
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"a time of '{duration}' to fine-tune for is no duration: give one such as 10m or 90s"
        )
    return seconds


def fine_tune(
    backbone: Backbone,
    images: LabeledImages,
    transform: Transform,
    device: torch.device,
    seconds: float,
    seed: int,
    progress: Progress,
) -> tuple[Backbone, str]:
    """Train a copy of a backbone on images; return it if it wins its trial, and a note."""
    classes = len(images.names)
    if classes < MIN_CLASSES:
        return backbone, (
            f"the backbone is not fine-tuned: {classes} classes are too few to tell whether it "
            f"helps, and {MIN_CLASSES} are needed"
        )
    with decoded_to_disk(images, transform, progress) as decoded:
        return _try_and_train(backbone, decoded.to(device), transform, seconds, seed, progress)


def _try_and_train(
    backbone: Backbone,
    images: ImageSet,
    transform: Transform,
    seconds: float,
    seed: int,
    progress: Progress,
) -> tuple[Backbone, str]:
    classes = len(images.class_names)
    generator = Generator().manual_seed(derive_seed(seed, "fine-tune"))
    is_new, is_held = _draw_trial(images.labels.cpu(), classes, generator)
    if not bool(is_held.any()):
        return backbone, (
            "the backbone is not fine-tuned: no class has enough images to hold some out, and "
            f"{ONE_IN} are needed"
        )
    learnt = (~is_new & ~is_held).nonzero().squeeze(1)
    trial = _train(backbone, images, learnt, transform, seconds / 2, generator, progress)
    correct = [
        _correct(network, images, transform, is_new, is_held) for network in (backbone, trial)
    ]
    before, after = (100 * float(each.mean()) for each in correct)
    queries = images.labels.cpu()[is_held]
    compared = f"{after:.1f} % of {len(queries)} held-out images are right, {before:.1f} % without"
    if not is_proven(correct[1] - correct[0], queries, MIN_GAIN):
        return backbone, f"the backbone is not fine-tuned: in a trial {compared}"
    everything = torch.arange(len(images))
    tuned = _train(backbone, images, everything, transform, seconds / 2, generator, progress)
    return tuned, f"the backbone is fine-tuned: in a trial {compared}"


def _draw_trial(labels: Tensor, classes: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return which images are of new classes, and which are held out, (n,) each.

    Of a new class all but its shots are.
    """
    new = torch.randperm(classes, generator=generator)[: round(NEW_SHARE * classes)]
    is_new = torch.isin(labels, new)
    is_held = torch.zeros_like(is_new)
    for label in range(classes):
        of_class = (labels == label).nonzero().squeeze(1)
        of_class = of_class[torch.randperm(len(of_class), generator=generator)]
        shots = SHOTS if label in new else len(of_class) - len(of_class) // ONE_IN
        is_held[of_class[max(1, shots) :]] = True
    return is_new, is_held


def _train(
    backbone: Backbone,
    images: ImageSet,
    learnt: Tensor,
    transform: Transform,
    seconds: float,
    generator: Generator,
    progress: Progress,
) -> Backbone:
    """Return a copy of a backbone that was trained on some of the images for so many seconds.

    Its weights are averaged with those before. Batch norms keep their statistics: a few hundred
    photos would give worse ones.
    """
    network = copy.deepcopy(backbone).to(images.device).eval().requires_grad_(True)
    head = nn.Linear(network.dim, len(images.class_names), bias=False, device=images.device)
    with torch.no_grad():  # scores are cosines to class means from the beginning
        head.weight.copy_(_class_means(network, images, learnt, transform))
    optimizer = torch.optim.AdamW([*network.parameters(), *head.parameters()], RATE)
    transform = replace(transform, scale=SCALE)
    views = Generator(images.device).manual_seed(generator.initial_seed())
    began = time.monotonic()
    while True:
        order = learnt[torch.randperm(len(learnt), generator=generator)]
        for batch in torch.split(order, BATCH):
            elapsed = time.monotonic() - began
            progress("fine-tuning", int(min(elapsed, seconds)), int(seconds))
            if elapsed >= seconds:
                return _average(backbone, network)
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 - elapsed / seconds)
            batch = batch.to(images.device)
            features = network(train_view(images, batch, transform, views))
            weight = F.normalize(head.weight, dim=1)
            scores = TEMPERATURE * F.normalize(features, dim=1) @ weight.T
            optimizer.zero_grad()
            loss = F.cross_entropy(scores, images.labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@torch.no_grad()
def _average(before: Backbone, after: Backbone) -> Backbone:
    """Return the trained backbone with the average of its weights and those before."""
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        new.lerp_(old.to(new), 1 - SHARE)
    return after.requires_grad_(False)


def _class_means(
    network: Backbone, images: ImageSet, learnt: Tensor, transform: Transform
) -> Tensor:
    features = F.normalize(_embed(network, images, transform)[learnt.to(images.device)], dim=1)
    sums = features.new_zeros(len(images.class_names), network.dim)
    return F.normalize(sums.index_add_(0, images.labels[learnt.to(images.device)], features), dim=1)


def _embed(network: Backbone, images: ImageSet, transform: Transform) -> Tensor:
    """Return the features of all images, (n, d) on their device."""
    embedder = Embedder(network, transform, images.device, engine="torch")
    parts = torch.split(torch.arange(len(images)), embedder.batch_size)
    squares = (torch.stack([images.image(i) for i in part.tolist()]) for part in parts)
    return torch.cat([embedder.features(part) for part in squares])


def _correct(
    network: Backbone, images: ImageSet, transform: Transform, is_new: Tensor, is_held: Tensor
) -> Tensor:
    """Return which held-out images the classifier on a backbone gets right, in float64.

    As for a user, old classes decide on the head, and new ones are learnt from their shots.
    """
    features = _embed(network, images, transform).cpu()
    labels = images.labels.cpu()
    old = (~is_new & ~is_held).nonzero().squeeze(1)
    names, positions = torch.unique(labels[old], return_inverse=True)
    raw = BaseFeatures(
        tuple(str(int(name)) for name in names),
        features[old],
        positions,
        torch.full_like(positions, NEVER),
    )
    base, whitening, head, _ = fit_features(raw, 0, network.classifier)
    new = [
        SupportSet(
            str(label), whitening(features[is_new & ~is_held & (labels == label)])
        ).to_class()
        for label in sorted(set(labels[is_new].tolist()))
    ]
    scorer = Scorer.build(head, [*base.classes(), *new])
    best = scorer.scores(whitening(features[is_held])).argmax(1)
    known = torch.tensor([int(one.name) for one in scorer.classes])
    return (known[best] == labels[is_held]).double()
