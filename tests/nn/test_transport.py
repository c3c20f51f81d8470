"""The earth mover's distance, against an exact solver of linear programs."""

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

from fewmore.nn.similarity import earth_mover
from fewmore.nn.transport import earth_movers_distance

CLOSE = 1e-3  # the accuracy that is promised; a bound from below may not lie above the distance but for rounding
ROUNDING = 1e-6


def exact(costs: Tensor, given: Tensor, taken: Tensor) -> Tensor:
    """The distance of each problem, by a general solver."""
    n, m, problems = costs.shape
    sums = vstack([kron(eye(n), np.ones((1, m))), kron(np.ones((1, n)), eye(m))]).tocsr()[
        :-1
    ]  # the last one follows from the others
    found = []
    for i in range(problems):
        a, b = given[:, i].double().numpy(), taken[:, i].double().numpy()
        wanted = np.concatenate([a / a.sum(), b / b.sum()])[:-1]
        found.append(
            linprog(
                costs[:, :, i].double().numpy().ravel(), A_eq=sums, b_eq=wanted, method="highs"
            ).fun
        )
    return torch.tensor(found, dtype=costs.dtype)


def assert_close_from_below(
    costs: Tensor, given: Tensor, taken: Tensor, close: float = CLOSE
) -> None:
    missing = exact(costs, given, taken) - earth_movers_distance(costs, given, taken)
    assert missing.max() <= close
    assert missing.min() >= -ROUNDING


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def of_maps(seed: int, problems: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Costs and weights as smooth feature maps behind a ReLU give them."""
    coarse = torch.randn(2 * problems, 32, 3, 3, generator=generator(seed))
    maps = (
        F.relu(F.interpolate(coarse, size=(side, side), mode="bilinear"))
        .flatten(2)
        .permute(2, 1, 0)
    )  # (cells, d, 2B)
    x, y = maps.chunk(2, 2)
    costs = 1 - torch.einsum("idb,jdb->ijb", F.normalize(x, dim=1), F.normalize(y, dim=1))
    return costs, (x * y.mean(0)).sum(1) + 1e-3, (y * x.mean(0)).sum(1) + 1e-3


# ---- the distance


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
def test_problems_as_feature_maps_make_them(side: int) -> None:
    assert_close_from_below(*of_maps(side, 12, side), close=CLOSE / 4)


def test_places_with_nothing_to_give_or_take() -> None:
    random = generator()
    costs = 2 * torch.rand(16, 16, 24, generator=random)
    weights = torch.rand(2, 16, 24, generator=random) * (
        torch.rand(2, 16, 24, generator=random) < 0.3
    )
    weights[:, 0] += 1e-3
    assert (weights == 0).any()
    assert_close_from_below(costs, *weights)


def test_weights_of_all_sizes() -> None:
    random = generator(1)
    weights = 10 ** (-12 * torch.rand(2, 16, 24, generator=random))
    assert_close_from_below(2 * torch.rand(16, 16, 24, generator=random), *weights)


def test_one_place_holds_all() -> None:
    random = generator(2)
    costs, spread, one = (
        2 * torch.rand(9, 9, 9, generator=random),
        torch.rand(9, 9, generator=random),
        torch.eye(9),
    )
    everywhere = earth_movers_distance(costs, one, spread)
    torch.testing.assert_close(
        everywhere,
        ((spread / spread.sum(0)) * costs.diagonal(dim1=0, dim2=2)).sum(0),
        atol=CLOSE,
        rtol=0,
    )
    assert_close_from_below(costs, spread, one)
    pairs = earth_movers_distance(costs, one, one.roll(1, 0))
    torch.testing.assert_close(
        pairs, torch.stack([costs[i, (i + 1) % 9, i] for i in range(9)]), atol=CLOSE, rtol=0
    )


def test_equal_costs_and_ties() -> None:
    random = generator(3)
    weights = torch.rand(2, 10, 6, generator=random)
    torch.testing.assert_close(
        earth_movers_distance(torch.full((10, 10, 6), 0.7), *weights),
        torch.full((6,), 0.7),
        atol=1e-5,
        rtol=0,
    )
    assert_close_from_below(
        torch.randint(0, 3, (10, 10, 6), generator=random).float(), *torch.ones(2, 10, 6)
    )


def test_nothing_to_move() -> None:
    """From a heap to a hole of the same size at the same place, for nothing."""
    weights = torch.rand(8, 5, generator=generator(4))
    costs = 1 - torch.eye(8)[:, :, None].expand(8, 8, 5)
    torch.testing.assert_close(
        earth_movers_distance(costs, weights, weights), torch.zeros(5), atol=CLOSE, rtol=0
    )


def test_an_assignment_is_the_best_of_all() -> None:
    costs = torch.rand(5, 5, 8, generator=generator(5))
    orders = torch.tensor(list(itertools.permutations(range(5))))  # (120, 5)
    best = costs[torch.arange(5), orders].mean(1).amin(0)
    found = earth_movers_distance(costs, *torch.ones(2, 5, 8))
    assert ((best - found) <= CLOSE).all()
    assert ((best - found) >= -ROUNDING).all()


def test_weights_need_not_sum_to_one() -> None:
    costs, a, b = of_maps(6, 4, 4)
    torch.testing.assert_close(
        earth_movers_distance(costs, 7 * a, b / 3),
        earth_movers_distance(costs, a, b),
        atol=1e-5,
        rtol=0,
    )


def test_either_side_may_give() -> None:
    costs, a, b = of_maps(7, 8, 4)
    torch.testing.assert_close(
        earth_movers_distance(costs, a, b),
        earth_movers_distance(costs.transpose(0, 1), b, a),
        atol=CLOSE,
        rtol=0,
    )


def test_a_problem_does_not_know_the_others() -> None:
    costs, a, b = of_maps(8, 9, 4)
    together = earth_movers_distance(costs, a, b)
    alone = torch.cat(
        [
            earth_movers_distance(costs[:, :, i : i + 1], a[:, i : i + 1], b[:, i : i + 1])
            for i in range(9)
        ]
    )
    torch.testing.assert_close(alone, together, atol=1e-6, rtol=0)
    assert earth_movers_distance(costs[:, :, :0], a[:, :0], b[:, :0]).shape == (0,)


def test_nothing_given_is_written_to() -> None:
    problem = of_maps(9, 3, 4)
    before = [tensor.clone() for tensor in problem]
    assert not earth_movers_distance(*problem).requires_grad
    assert all(torch.equal(now, then) for now, then in zip(problem, before, strict=True))


def test_single_precision_is_enough() -> None:
    problem = of_maps(10, 20, 8)
    double = earth_movers_distance(*(tensor.double() for tensor in problem))
    torch.testing.assert_close(earth_movers_distance(*problem).double(), double, atol=1e-5, rtol=0)


weight = st.sampled_from([0.0, 1e-30, 1e-9, 1e-4, 0.1, 1.0, 50.0])


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 5))
def test_any_problem_is_bounded_from_below(data: st.DataObject, n: int, m: int) -> None:
    def column(size: int) -> Tensor:
        return torch.tensor(
            data.draw(
                st.lists(weight, min_size=size, max_size=size).filter(lambda w: max(w) > 1e-20)
            )
        )[:, None]

    costs = torch.tensor(
        data.draw(st.lists(st.floats(0, 2, width=16), min_size=n * m, max_size=n * m))
    ).reshape(n, m, 1)
    a, b = column(n), column(m)
    missing = exact(costs, a, b) - earth_movers_distance(costs, a, b)
    assert -1e-5 <= float(missing) <= 10 * CLOSE  # a looser promise for problems made to be bad


@pytest.mark.soak
def test_thousands_of_problems() -> None:
    for seed in range(20):
        assert_close_from_below(*of_maps(seed, 60, 8))
        random = generator(seed)
        costs = 2 * torch.rand(16, 16, 100, generator=random)
        weights = (
            torch.rand(2, 16, 100, generator=random)
            * (torch.rand(2, 16, 100, generator=random) < 0.5)
            + 1e-6
        )
        assert_close_from_below(costs, *weights)


# ---- the similarity of feature maps


def maps_of(images: int, cells: int, seed: int) -> Tensor:
    return torch.randn(images, cells, 12, generator=generator(seed)).relu() + 0.1


@pytest.mark.parametrize("centred", [True, False])
def test_the_similarity_as_it_is_defined(centred: bool) -> None:
    """16 · Σ flow · cosine, the flow from the exact solver and the weights from the other map's mean, pair by pair."""
    queries, classes = maps_of(3, 9, 0), maps_of(4, 9, 1)
    scores = earth_mover(queries, classes, centred)
    for q, query in enumerate(queries):
        for k, prototype in enumerate(classes):
            given = (query @ prototype.mean(0)).relu() + 1e-3
            taken = (prototype @ query.mean(0)).relu() + 1e-3
            x, y = (
                cells - cells.mean(1, keepdim=True) if centred else cells
                for cells in (query, prototype)
            )
            cosines = F.cosine_similarity(x[:, None], y[None], dim=2)
            distance = exact((1 - cosines)[:, :, None], given[:, None], taken[:, None])
            assert abs(float(scores[q, k]) - 16 * (1 - float(distance))) <= 16 * CLOSE


def test_a_map_is_most_like_itself_wherever_its_cells_lie() -> None:
    maps = maps_of(5, 16, 2)
    moved = maps[:, torch.randperm(16, generator=generator(3))]
    scores = earth_mover(moved, maps, centred=True)
    assert (scores.argmax(1) == torch.arange(5)).all()
    torch.testing.assert_close(scores.diagonal(), torch.full((5,), 16.0), atol=16 * CLOSE, rtol=0)


def test_cells_with_nothing_in_common_weigh_little() -> None:
    """A thing in one corner counts; a background that is in the query alone does not."""
    thing, background = torch.tensor([4.0, 0, 0]), torch.tensor([0.0, 3, 0])
    query = torch.stack([thing, background, background, background])[None]
    classes = torch.stack([thing.expand(4, 3), torch.tensor([0.0, 0, 4]).expand(4, 3)])
    scores = earth_mover(query, classes, centred=False)
    assert scores[0, 0] > 15.9
    assert scores[0, 1] < 0.1


def test_one_cell_is_the_cosine() -> None:
    queries, classes = maps_of(4, 1, 4), maps_of(3, 1, 5)
    expected = 16 * F.cosine_similarity(queries[:, None, 0], classes[None, :, 0], dim=2)
    torch.testing.assert_close(
        earth_mover(queries, classes, centred=False), expected, atol=1e-4, rtol=0
    )


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, classes = maps_of(7, 4, 6), maps_of(3, 4, 7)
    whole = earth_mover(queries, classes, centred=True)
    monkeypatch.setattr("fewmore.nn.similarity.BLOCK", {"cpu": 2 * 16 * 3})
    torch.testing.assert_close(
        earth_mover(queries, classes, centred=True), whole, atol=1e-5, rtol=0
    )
    monkeypatch.setattr("fewmore.nn.similarity.BLOCK", {"cpu": 1})
    torch.testing.assert_close(
        earth_mover(queries, classes, centred=True), whole, atol=1e-5, rtol=0
    )
    assert earth_mover(queries[:0], classes, centred=True).shape == (0, 3)


def test_dead_cells_are_like_nothing() -> None:
    queries = torch.zeros(1, 4, 3)
    scores = earth_mover(queries, maps_of(2, 4, 8)[..., :3], centred=True)
    torch.testing.assert_close(scores, torch.zeros(1, 2), atol=16 * CLOSE, rtol=0)
