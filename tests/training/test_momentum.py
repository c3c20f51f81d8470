"""Test the momentum encoder and the queue."""

from collections import deque

import pytest
import torch
from torch import Tensor, nn

from fewmore.nn.backbones import Backbone
from fewmore.training.momentum import MomentumEncoder, Queue


def test_weights_are_a_moving_average_of_the_networks() -> None:
    network = nn.Linear(3, 2)
    encoder = MomentumEncoder(network, 0.9)
    expected = network.weight.detach().clone()
    for step in range(4):
        with torch.no_grad():
            network.weight.add_(step + 1)
        encoder.update()
        expected = 0.9 * expected + 0.1 * network.weight.detach()
    assert torch.allclose(encoder.copy.weight, expected)  # type: ignore[arg-type]


def test_it_has_no_gradients_and_leaves_the_network_alone(backbone: Backbone) -> None:
    encoder = MomentumEncoder(backbone.train())
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    features = encoder(torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert not features.requires_grad
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert all(parameter.requires_grad for parameter in backbone.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.state_dict().items())
    own = encoder.state_dict()  # its batch norms take statistics of their own
    assert any(not torch.equal(own[f"copy.{name}"], value) for name, value in before.items())
    assert set(own) == {f"copy.{name}" for name in before}


@pytest.fixture
def queue() -> Queue:
    return Queue(5, 3, torch.Generator().manual_seed(0))


def test_an_empty_queue_holds_unit_vectors_of_no_class(queue: Queue) -> None:
    features, labels = queue.read()
    assert torch.allclose(features.norm(dim=1), torch.ones(5))
    assert labels.tolist() == [-1] * 5


@pytest.mark.parametrize("sizes", [[2, 2, 2, 3], [5, 1], [7, 2]])
def test_the_oldest_features_leave_first(queue: Queue, sizes: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    expected: deque[tuple[Tensor, int]] = deque(
        [(vector, -1) for vector in queue.features.clone()], maxlen=5
    )
    number = 0
    for size in sizes:
        features = torch.randn(size, 3, generator=generator)
        labels = torch.arange(number, number + size)
        number += size
        expected.extend(
            (vector / vector.norm(), int(label))
            for vector, label in zip(features, labels, strict=True)
        )
        queue.add(features, labels)
    oldest = int(queue.place)
    found = torch.roll(queue.features, -oldest, 0)
    assert torch.roll(queue.labels, -oldest).tolist() == [label for _, label in expected]
    assert torch.allclose(found, torch.stack([vector for vector, _ in expected]))


def test_what_was_read_stays_for_the_backward_pass(queue: Queue) -> None:
    features = torch.randn(2, 3, generator=torch.Generator().manual_seed(2)).requires_grad_()
    others, _ = queue.read()
    loss = (features @ others.T).square().sum()
    queue.add(features.detach(), torch.tensor([0, 1]))
    loss.backward()
    assert features.grad is not None
