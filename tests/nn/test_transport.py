"""Compare the earth mover's distance with an exact solver of linear programs."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import eye, kron, vstack
from torch import Tensor

from fewmore.nn.similarity import COST_BLOCK, earth_mover
from fewmore.nn.transport import earth_movers_distance

ACCURACY = 1e-3  # how far the result may lie below the distance
ROUNDING = 1e-6  # how far it may lie above


def exact_distance(costs: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Solve each problem as a linear program."""
    n, m, problems = costs.shape
    row_and_column_sums = vstack([kron(eye(n), np.ones((1, m))), kron(np.ones((1, n)), eye(m))])
    constraints = row_and_column_sums.tocsr()[:-1]  # the last one follows from the others
    distances = []
    for i in range(problems):
        a = source[:, i].double().numpy()
        b = target[:, i].double().numpy()
        weights = np.concatenate([a / a.sum(), b / b.sum()])[:-1]
        c = costs[:, :, i].double().numpy().ravel()
        distances.append(linprog(c, A_eq=constraints, b_eq=weights, method="highs").fun)
    return torch.tensor(distances, dtype=costs.dtype)


def assert_close_from_below(
    costs: Tensor, source: Tensor, target: Tensor, accuracy: float = ACCURACY
) -> None:
    exact = exact_distance(costs, source, target)
    shortfall = exact - earth_movers_distance(costs, source, target)
    assert shortfall.max() <= accuracy
    assert shortfall.min() >= -ROUNDING


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def feature_map_problems(seed: int, problems: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return costs and weights of smooth feature maps behind a ReLU."""
    coarse = torch.randn(2 * problems, 32, 3, 3, generator=generator(seed))
    maps = F.relu(F.interpolate(coarse, size=(side, side), mode="bilinear"))
    x, y = maps.flatten(2).permute(2, 1, 0).chunk(2, 2)  # (cells, d, B) each
    costs = 1 - torch.einsum("idb,jdb->ijb", F.normalize(x, dim=1), F.normalize(y, dim=1))
    return costs, (x * y.mean(0)).sum(1) + 1e-3, (y * x.mean(0)).sum(1) + 1e-3


# The distance


@pytest.mark.parametrize(
    ("n", "m"), [(1, 1), (1, 7), (7, 1), (3, 3), (9, 9), (16, 16), (12, 20), (64, 64)]
)
def test_random_problems(n: int, m: int) -> None:
    random = generator(n * m)
    costs = 2 * torch.rand(n, m, 12, generator=random)
    assert_close_from_below(
        costs, torch.rand(n, 12, generator=random), torch.rand(m, 12, generator=random)
    )


@pytest.mark.parametrize("side", [3, 4, 8])
def test_problems_of_feature_maps(side: int) -> None:
    assert_close_from_below(*feature_map_problems(side, 12, side), accuracy=ACCURACY / 4)


def test_weights_of_zero() -> None:
    random = generator()
    costs = 2 * torch.rand(16, 16, 24, generator=random)
    weights = torch.rand(2, 16, 24, generator=random)
    weights = weights * (torch.rand(2, 16, 24, generator=random) < 0.3)
    weights[:, 0] += 1e-3
    assert (weights == 0).any()
    assert_close_from_below(costs, *weights)


def test_weights_of_many_magnitudes() -> None:
    random = generator(1)
    weights = 10 ** (-12 * torch.rand(2, 16, 24, generator=random))
    assert_close_from_below(2 * torch.rand(16, 16, 24, generator=random), *weights)


def test_all_mass_at_one_place() -> None:
    random = generator(2)
    costs = 2 * torch.rand(9, 9, 9, generator=random)
    weights = torch.rand(9, 9, generator=random)
    one_place = torch.eye(9)  # problem i has all mass at place i
    distances = earth_movers_distance(costs, one_place, weights)
    expected = ((weights / weights.sum(0)) * costs.diagonal(dim1=0, dim2=2)).sum(0)
    torch.testing.assert_close(distances, expected, atol=ACCURACY, rtol=0)
    assert_close_from_below(costs, weights, one_place)
    distances = earth_movers_distance(costs, one_place, one_place.roll(1, 0))
    expected = torch.stack([costs[i, (i + 1) % 9, i] for i in range(9)])
    torch.testing.assert_close(distances, expected, atol=ACCURACY, rtol=0)


def test_equal_costs_and_ties() -> None:
    random = generator(3)
    weights = torch.rand(2, 10, 6, generator=random)
    distances = earth_movers_distance(torch.full((10, 10, 6), 0.7), *weights)
    torch.testing.assert_close(distances, torch.full((6,), 0.7), atol=1e-5, rtol=0)
    tied = torch.randint(0, 3, (10, 10, 6), generator=random).float()
    assert_close_from_below(tied, *torch.ones(2, 10, 6))


def test_nothing_to_move() -> None:
    """Give source and target the same weights, and staying in place no cost."""
    weights = torch.rand(8, 5, generator=generator(4))
    costs = 1 - torch.eye(8)[:, :, None].expand(8, 8, 5)
    distances = earth_movers_distance(costs, weights, weights)
    torch.testing.assert_close(distances, torch.zeros(5), atol=ACCURACY, rtol=0)


def test_equal_weights_solve_the_assignment_problem() -> None:
    costs = torch.rand(5, 5, 8, generator=generator(5))
    orders = torch.tensor(list(itertools.permutations(range(5))))  # (120, 5)
    best = costs[torch.arange(5), orders].mean(1).amin(0)
    shortfall = best - earth_movers_distance(costs, *torch.ones(2, 5, 8))
    assert (shortfall <= ACCURACY).all()
    assert (shortfall >= -ROUNDING).all()


def test_weights_need_not_sum_to_one() -> None:
    costs, a, b = feature_map_problems(6, 4, 4)
    distances = earth_movers_distance(costs, a, b)
    scaled = earth_movers_distance(costs, 7 * a, b / 3)
    torch.testing.assert_close(scaled, distances, atol=1e-5, rtol=0)


def test_source_and_target_may_be_swapped() -> None:
    costs, a, b = feature_map_problems(7, 8, 4)
    distances = earth_movers_distance(costs, a, b)
    swapped = earth_movers_distance(costs.transpose(0, 1), b, a)
    torch.testing.assert_close(distances, swapped, atol=ACCURACY, rtol=0)


def test_problems_are_independent() -> None:
    costs, a, b = feature_map_problems(8, 9, 4)
    together = earth_movers_distance(costs, a, b)
    parts = [slice(i, i + 1) for i in range(9)]
    alone = torch.cat([earth_movers_distance(costs[:, :, i], a[:, i], b[:, i]) for i in parts])
    torch.testing.assert_close(alone, together, atol=1e-6, rtol=0)
    assert earth_movers_distance(costs[:, :, :0], a[:, :0], b[:, :0]).shape == (0,)


def test_inputs_are_not_changed() -> None:
    problem = feature_map_problems(9, 3, 4)
    before = [tensor.clone() for tensor in problem]
    assert not earth_movers_distance(*problem).requires_grad
    assert all(torch.equal(now, then) for now, then in zip(problem, before, strict=True))


def test_single_precision_is_enough() -> None:
    problem = feature_map_problems(10, 20, 8)
    double = earth_movers_distance(*(tensor.double() for tensor in problem))
    torch.testing.assert_close(earth_movers_distance(*problem).double(), double, atol=1e-5, rtol=0)


weight = st.sampled_from([0.0, 1e-30, 1e-9, 1e-4, 0.1, 1.0, 50.0])


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 5))
def test_any_problem_is_bounded_from_below(data: st.DataObject, n: int, m: int) -> None:
    def column(size: int) -> Tensor:
        lists = st.lists(weight, min_size=size, max_size=size).filter(lambda w: max(w) > 1e-20)
        return torch.tensor(data.draw(lists))[:, None]

    lists = st.lists(st.floats(0, 2, width=16), min_size=n * m, max_size=n * m)
    costs = torch.tensor(data.draw(lists)).reshape(n, m, 1)
    a = column(n)
    b = column(m)
    shortfall = exact_distance(costs, a, b) - earth_movers_distance(costs, a, b)
    assert -1e-5 <= float(shortfall) <= 10 * ACCURACY  # looser, for problems made to be bad


@pytest.mark.soak
def test_thousands_of_problems() -> None:
    for seed in range(20):
        assert_close_from_below(*feature_map_problems(seed, 60, 8))
        random = generator(seed)
        costs = 2 * torch.rand(16, 16, 100, generator=random)
        sparse = torch.rand(2, 16, 100, generator=random)
        sparse = sparse * (torch.rand(2, 16, 100, generator=random) < 0.5)
        assert_close_from_below(costs, *(sparse + 1e-6))


# The similarity of feature maps


def feature_maps(images: int, cells: int, seed: int) -> Tensor:
    return torch.randn(images, cells, 12, generator=generator(seed)).relu() + 0.1


@pytest.mark.parametrize("centred", [True, False])
def test_the_similarity_follows_its_definition(centred: bool) -> None:
    """Compute 16 · Σ flow · cosine pair by pair, with the flow of the exact solver."""
    queries = feature_maps(3, 9, 0)
    classes = feature_maps(4, 9, 1)
    scores = earth_mover(queries, classes, centred)
    for q, query in enumerate(queries):
        for k, prototype in enumerate(classes):
            source = (query @ prototype.mean(0)).relu() + 1e-3
            target = (prototype @ query.mean(0)).relu() + 1e-3
            x, y = (
                cells - cells.mean(1, keepdim=True) if centred else cells
                for cells in (query, prototype)
            )
            cosines = F.cosine_similarity(x[:, None], y[None], dim=2)
            costs = (1 - cosines)[:, :, None]
            distance = exact_distance(costs, source[:, None], target[:, None])
            assert abs(float(scores[q, k]) - 16 * (1 - float(distance))) <= 16 * ACCURACY


def test_the_order_of_cells_does_not_matter() -> None:
    maps = feature_maps(5, 16, 2)
    permuted = maps[:, torch.randperm(16, generator=generator(3))]
    scores = earth_mover(permuted, maps, centred=True)
    assert (scores.argmax(1) == torch.arange(5)).all()
    expected = torch.full((5,), 16.0)
    torch.testing.assert_close(scores.diagonal(), expected, atol=16 * ACCURACY, rtol=0)


def test_cells_with_nothing_in_common_weigh_little() -> None:
    """Match an object in one cell, and ignore a background that only the query has."""
    subject = torch.tensor([4.0, 0, 0])
    background = torch.tensor([0.0, 3, 0])
    query = torch.stack([subject, background, background, background])[None]
    classes = torch.stack([subject.expand(4, 3), torch.tensor([0.0, 0, 4]).expand(4, 3)])
    scores = earth_mover(query, classes, centred=False)
    assert scores[0, 0] > 15.9
    assert scores[0, 1] < 0.1


def test_one_cell_is_the_cosine() -> None:
    queries = feature_maps(4, 1, 4)
    classes = feature_maps(3, 1, 5)
    scores = earth_mover(queries, classes, centred=False)
    expected = 16 * F.cosine_similarity(queries[:, None, 0], classes[None, :, 0], dim=2)
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=0)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = feature_maps(7, 4, 6)
    classes = feature_maps(3, 4, 7)
    whole = earth_mover(queries, classes, centred=True)
    for size in (2 * 16 * 3, 1):
        monkeypatch.setitem(COST_BLOCK, "cpu", size)
        blocks = earth_mover(queries, classes, centred=True)
        torch.testing.assert_close(blocks, whole, atol=1e-5, rtol=0)
    assert earth_mover(queries[:0], classes, centred=True).shape == (0, 3)


def test_any_device_has_a_block_size() -> None:
    maps = torch.empty(2, 4, 12, device="meta")
    assert earth_mover(maps, maps, centred=True).shape == (2, 2)


def test_cells_of_zeros_score_zero() -> None:
    queries = torch.zeros(1, 4, 3)
    scores = earth_mover(queries, feature_maps(2, 4, 8)[..., :3], centred=True)
    torch.testing.assert_close(scores, torch.zeros(1, 2), atol=16 * ACCURACY, rtol=0)
