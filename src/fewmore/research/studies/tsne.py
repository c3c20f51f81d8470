"""Show what adaptation does to class weights, laid out by t-SNE (Fig. 4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods.cec import CEC
from fewmore.nn import similarity
from fewmore.random import derive_seed
from fewmore.research.experiment import Experiment, run_name
from fewmore.research.reporting import figures
from fewmore.research.reporting.tables import Cell, Grid
from fewmore.research.studies.base import Finished, Setting, Study
from fewmore.research.trained import load_method

BASE_CLASSES = 5  # that are shown
NEW_CLASSES = 4
IMAGES = 100  # of a class, at most


def experiments(setting: Setting) -> dict[str, Experiment]:
    """Return the experiment of CEC."""
    return {"cec": setting.experiment("cec")}


@dataclass(frozen=True)
class _Adaptation:
    """Hold embeddings, and the class weights before and after adaptation."""

    embeddings: Tensor
    before: Tensor
    after: Tensor
    accuracy_before: float
    accuracy_after: float


def draw(setting: Setting, finished: Mapping[str, Finished], out: Path) -> Grid:
    """Draw a few classes, chosen at random, and what the adapter does when there are no others."""
    method = _load(finished["cec"])
    classes, base = _choose_classes(setting.task)
    images = _test_images(setting.task, classes)
    adaptation = _adapt(method, images, classes)
    accuracy = (
        f"{adaptation.accuracy_before:.2f} % before, {adaptation.accuracy_after:.2f} % "
        "after adaptation"
    )
    figure = figures.tsne_figure(
        adaptation.embeddings.double().numpy(),
        images.labels.numpy(),
        adaptation.before.double().numpy(),
        adaptation.after.double().numpy(),
        images.class_names,
        base,
        setting.benchmark,
        f"accuracy among these classes: {accuracy}",
    )
    figures.save_all(figure, out / "tsne")
    cosines = torch.nn.functional.cosine_similarity(adaptation.before, adaptation.after)
    return Grid(
        f"{setting.benchmark}: how far adaptation rotates weights",
        "class",
        ("cosine of before and after",),
        tuple(
            (name, (Cell(float(cosine)),))
            for name, cosine in zip(images.class_names, cosines, strict=True)
        ),
        (f"accuracy among these classes alone: {accuracy}",),
    )


def _load(finished: Finished) -> CEC:
    """Load the trained model of the first run."""
    method = load_method(finished.folder / run_name(*finished.experiment.runs()[0]))
    if not isinstance(method, CEC):
        raise ConfigError(
            "weights before and after adaptation are CEC's, and not of " + type(method).__name__
        )
    return method


def _choose_classes(task: Task) -> tuple[Tensor, int]:
    """Choose base and new classes at random; return them and how many of them are base."""
    base = len(task.split.sessions[0].classes)
    total = len(task.split.seen(len(task.split.sessions)))
    generator = torch.Generator().manual_seed(derive_seed("classes of t-SNE"))
    base_classes = torch.randperm(base, generator=generator)[:BASE_CLASSES]
    new_classes = base + torch.randperm(total - base, generator=generator)[:NEW_CLASSES]
    chosen = torch.cat([base_classes.sort().values, new_classes.sort().values])
    return chosen, len(base_classes)


def _test_images(task: Task, classes: Tensor) -> ImageSet:
    """Return the first test images of each class."""
    seen = task.split.seen(len(task.split.sessions))
    images = task.test.select_classes([seen[c] for c in classes])
    indices = [
        (images.labels == label).nonzero().squeeze(1)[:IMAGES]
        for label in range(len(images.class_names))
    ]
    return images.select(torch.cat(indices)).to("cpu")


@torch.no_grad()
def _adapt(method: CEC, images: ImageSet, classes: Tensor) -> _Adaptation:
    """Adapt the weights of these classes to one another, as if there were no others."""
    adapter = method.adapter
    embeddings = method.embed(images)
    prototypes = method.network.classifier.prototypes[classes]
    context = adapter.context(prototypes)

    def accuracy(scores: Tensor) -> float:
        return 100 * float((scores.argmax(1) == images.labels).double().mean())

    return _Adaptation(
        adapter.layer_norm(embeddings),
        adapter.layer_norm(prototypes),
        adapter.adapted_prototypes(context),
        accuracy(similarity.cosine(embeddings, prototypes)),
        accuracy(adapter.scores(embeddings, context)),
    )


STUDY = Study(
    "tsne", "Embeddings and weights before and after adaptation", "Fig. 4", 1, experiments, draw
)
