"""Test the moving average of weights against its formula and against torch's AveragedModel."""

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fewmore.training.average import WeightAverage

CPU = torch.device("cpu")


def values_of_steps(steps: int) -> list[Tensor]:
    """Return what a weight is after each of some steps."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 2, generator=generator) for _ in range(steps)]


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("steps", [1, 2, 7, 60])
def test_each_step_counts_decay_times_as_much_as_the_next(decay: float, steps: int) -> None:
    weight = torch.full((3, 2), 100.0)  # before training, which does not count
    average = WeightAverage({"net.weight": weight}, decay, CPU)
    values = values_of_steps(steps)
    for value in values:
        weight.copy_(value)
        average.update()
    counts = [decay ** (steps - 1 - step) for step in range(steps)]
    expected = sum(n * value.double() for n, value in zip(counts, values, strict=True))
    average.finish()
    torch.testing.assert_close(weight.double(), expected / sum(counts), rtol=1e-4, atol=1e-4)


def test_it_is_the_average_of_torch() -> None:
    """Compare all weights and statistics; torch takes the factor of the newest from a function."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    decay = 0.8

    def add(average: Tensor, now: Tensor, done: Tensor) -> Tensor:
        newest = (1 - decay) / (1 - decay ** (int(done) + 1))
        return average + (now - average) * newest

    theirs = AveragedModel(net, avg_fn=add, use_buffers=True)
    ours = WeightAverage(net.state_dict(), decay, CPU)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        inputs = torch.randn(8, 4)
        (net(inputs) - inputs[:, :3]).square().sum().backward()
        optimizer.step()
        ours.update()
        theirs.update_parameters(net)
    last = net[0].weight.detach().clone()
    ours.finish()
    for name, tensor in theirs.module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(net.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(net[0].weight, last, atol=1e-3)
    assert int(net[1].num_batches_tracked) == 6, "a counter is not averaged"


def test_what_does_not_change_keeps_its_bits() -> None:
    frozen = torch.tensor([0.1, 1e-7, 12345.678])
    average = WeightAverage({"net.frozen": frozen}, 0.99, CPU)
    before = frozen.clone()
    for _ in range(50):
        average.update()
    average.finish()
    assert torch.equal(frozen, before)
