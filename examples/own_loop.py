"""Bring a network and a training loop of your own, as plain PyTorch; fewmore does all the rest."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from fewmore.data.augment import test_view, train_view
from fewmore.errors import NotFittedError
from fewmore.methods.base import FrozenBackbone, MethodConfig
from fewmore.nn.prototypes import class_means
from fewmore.nn.similarity import cosine
from fewmore.random import derive_seed


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings of the loop."""

    epochs: int = 20
    lr: float = 0.002
    width: int = 32  # channels of the first layer


def _block(before, after, stride):
    convolution = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(after), nn.ReLU()


class OwnLoop(FrozenBackbone):
    """Class means on the features of a network that a loop of one's own has trained."""

    config_type = Config
    name = "own_loop"

    def __init__(self, recipe, runtime, seed):
        super().__init__(recipe, runtime, seed)
        width = self.config.width
        with torch.random.fork_rng(devices=[]):  # layers draw from the global generator
            torch.manual_seed(derive_seed(seed, "layers"))
            self.net = nn.Sequential(
                *_block(3, width, 1),
                *_block(width, 2 * width, 2),
                *_block(2 * width, 4 * width, 2),
                *_block(4 * width, 4 * width, 2),
                *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            ).to(runtime.device)

    def fit(self, base):
        random = torch.Generator().manual_seed(derive_seed(self.seed, "loop"))
        on_device = torch.Generator(base.device).manual_seed(derive_seed(self.seed, "views"))
        rows = DataLoader(range(len(base)), 32, shuffle=True, generator=random)
        shape = len(base.class_names), 4 * self.config.width
        head = nn.Parameter(torch.randn(shape, generator=random).to(base.device))
        optimizer = torch.optim.AdamW([*self.net.parameters(), head], self.config.lr)
        self.net.train()
        for _ in range(self.config.epochs):
            for batch in rows:
                # base.image(i) is a uint8 tensor (3, h, w), for augmentations of your own.
                view = train_view(base, batch.to(base.device), self.recipe.transform, on_device)
                logits = 16 * cosine(self.net(view), head)
                loss = F.cross_entropy(logits, base.labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self.net.eval()
        self.means = self._means(base)
        self.sessions = 1

    def learn(self, session):
        self._check_fitted()
        self.means = torch.cat([self.means, self._means(session)])
        self.sessions += 1

    def embed(self, images):
        self._check_fitted()
        return self._features(images)

    def scores_of(self, features):
        self._check_fitted()
        return cosine(features, self.means)

    def state(self):
        self._check_fitted()
        return {"net": self.net.state_dict(), "means": self.means, "sessions": self.sessions}

    def restore(self, state):
        self.net.load_state_dict(state["net"])
        self.net.eval()
        self.means, self.sessions = state["means"].to(self.runtime.device), state["sessions"]

    @torch.no_grad()
    def _features(self, images):
        batches = torch.arange(len(images), device=images.device).split(256)
        views = (test_view(images, batch, self.recipe.transform) for batch in batches)
        return torch.cat([self.net(view) for view in views])

    def _means(self, images):
        return class_means(self._features(images), images.labels, len(images.class_names))

    def _check_fitted(self):
        if not self.sessions:
            raise NotFittedError("call fit first")
