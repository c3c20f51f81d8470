"""Train, learn, predict and save with real models of timm, whose weights are random.

They need timm, and so torchvision, which cannot be imported beside a CPU build of PyTorch.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from fewmore import IncrementalClassifier, load

try:
    import timm
except (ImportError, RuntimeError) as error:
    pytest.skip(f"timm cannot be imported ({error})", allow_module_level=True)

COLORS = {
    "red": (200, 40, 40),
    "green": (40, 200, 40),
    "blue": (40, 40, 200),
    "gray": (120, 120, 120),
}


def images_of(name: str, count: int, seed: int) -> list[np.ndarray]:
    """Return noisy images (64, 64, 3) of one color."""
    noise = np.random.default_rng(seed).integers(-30, 30, (count, 64, 64, 3))
    return list((noise + np.array(COLORS[name])).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    ("model", "size"),
    [("resnet10t", 176), ("vit_tiny_patch16_224", 224), ("vit_small_patch14_dinov2", 518)],
)
def test_a_model_of_timm_from_training_to_a_loaded_file(
    model: str, size: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    weights = tmp_path / "weights.pth"
    entries = timm.create_model(model, pretrained=False).state_dict()
    # Before training, DINOv2's layers are scaled by 1e-5: its features do not depend on the image.
    scaled = {name: torch.ones_like(t) for name, t in entries.items() if name.endswith("gamma")}
    torch.save({**entries, **scaled}, weights)
    clf = IncrementalClassifier(backbone=f"timm:{model}", weights=weights)
    clf.fit({name: images_of(name, 6, seed) for seed, name in enumerate(("red", "green", "blue"))})
    assert clf.build_embedder().transform.size == size
    clf.learn({"gray": images_of("gray", 5, 3)})
    queries = [image for seed, name in enumerate(COLORS) for image in images_of(name, 3, 10 + seed)]
    answers = clf.predict(queries)
    assert [answer.names[0] for answer in answers] == [name for name in COLORS for _ in range(3)]
    clf.save(tmp_path / "colors.fewmore")
    assert load(tmp_path / "colors.fewmore").predict(queries) == answers
