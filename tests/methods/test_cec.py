"""CEC: class means of the tuned encoder, adapted to one another and to the query."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet, concatenate
from fewmore.errors import DataError, NotFittedError
from fewmore.methods import METHODS
from fewmore.methods.base import Recipe, override
from fewmore.methods.cec import CEC
from fewmore.nn.adapter import AdapterConfig
from fewmore.training.checkpoint import read_state, write_state
from fewmore.training.runtime import Round, Runtime


@pytest.fixture
def recipe(tiny_task: Task, small_recipe: Callable[..., Recipe]) -> Recipe:
    """Two rounds of two episodes, fast enough for the encoder to move."""
    return small_recipe("quick", tiny_task.benchmark, "cec", "pseudo.encoder_lr=0.02")


def learnt(
    recipe: Recipe, sessions: Sequence[ImageSet], seed: int = 0, runtime: Runtime | None = None
) -> CEC:
    method = CEC(recipe, runtime or Runtime(), seed)
    method.fit(sessions[0])
    for session in sessions[1:]:
        method.learn(session)
    return method


def means(features: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([features[labels == c].double().mean(0) for c in labels.unique()]).float()


def test_scores_of_every_class_seen(
    recipe: Recipe, sessions: list[ImageSet], tiny_task: Task
) -> None:
    method = learnt(recipe, sessions[:1])
    assert method.scores(tiny_task.test).shape == (40, 4)
    for number, session in enumerate(sessions[1:], 1):
        method.learn(session)
        scores = method.scores(tiny_task.test)
        assert scores.shape == (40, 4 + 2 * number)
        assert float(scores.abs().max()) <= 16.001
        assert method.sessions == number + 1


def test_rows_are_means_of_the_tuned_encoder(recipe: Recipe, sessions: list[ImageSet]) -> None:
    """Those of the base classes too: they are taken again after stage 2."""
    method = learnt(recipe, sessions)
    expected = torch.cat([means(method.embed(session), session.labels) for session in sessions])
    rows = method.network.classifier.prototypes.detach()
    assert rows.shape == (8, 64)
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-6)
    # The encoder has moved since stage 1, so means of then would not have done.
    first = CEC(recipe, Runtime(), 0).network
    first.fit(sessions[0], "cosine", 0)
    assert not torch.allclose(
        means(first.embed(sessions[0]), sessions[0].labels), rows[:4], rtol=1e-3
    )


def test_scores_are_the_adapters(recipe: Recipe, sessions: list[ImageSet], tiny_task: Task) -> None:
    """Of all rows and the query, also after more rows have come."""
    method = learnt(recipe, sessions)
    features = method.embed(tiny_task.test)
    with torch.no_grad():
        expected = method.adapter(features, method.network.classifier.prototypes)
    torch.testing.assert_close(method.scores_of(features), expected)
    torch.testing.assert_close(method.scores(tiny_task.test), expected)
    assert not method.adapter.training


def test_beside_them_the_plain_cosine_of_the_tuned_encoder(
    recipe: Recipe, sessions: list[ImageSet], tiny_task: Task
) -> None:
    method = learnt(recipe, sessions)
    features = method.embed(tiny_task.test)
    also = method.also_scores_of(features)
    assert list(also) == ["cosine_after_pil"]
    rows = torch.cat([means(method.embed(session), session.labels) for session in sessions])
    torch.testing.assert_close(
        also["cosine_after_pil"],
        16 * F.normalize(features) @ F.normalize(rows).T,
        rtol=0,
        atol=1e-4,
    )
    assert not torch.allclose(also["cosine_after_pil"], method.scores_of(features), atol=1e-2)


def test_any_grouping_into_sessions_gives_the_same_scores(
    recipe: Recipe, sessions: list[ImageSet], tiny_task: Task
) -> None:
    base, *new = sessions
    together = concatenate(new)
    one_by_one = [together.select_classes([c]) for c in range(4)]
    uneven = [together.select_classes([0, 1, 2]), together.select_classes([3])]
    expected = learnt(recipe, sessions).scores(tiny_task.test)
    for grouping in ([together], one_by_one, uneven):
        method = learnt(recipe, [base, *grouping])
        assert method.sessions == 1 + len(grouping)
        torch.testing.assert_close(method.scores(tiny_task.test), expected, rtol=0, atol=1e-5)


def test_the_order_of_classes_decides_the_order_of_scores_alone(
    recipe: Recipe, sessions: list[ImageSet], tiny_task: Task
) -> None:
    base, *new = sessions
    together = concatenate(new)
    order = [2, 0, 3, 1]
    expected = learnt(recipe, [base, together]).scores(tiny_task.test)[
        :, [0, 1, 2, 3, *(4 + c for c in order)]
    ]
    torch.testing.assert_close(
        learnt(recipe, [base, together.select_classes(order)]).scores(tiny_task.test),
        expected,
        rtol=0,
        atol=1e-5,
    )


def test_the_same_images_score_the_same_before_and_after_others_are_embedded(
    recipe: Recipe, sessions: list[ImageSet]
) -> None:
    """The encoder stands still after the base session."""
    method = learnt(recipe, sessions[:1])
    before = method.embed(sessions[0])
    for session in sessions[1:]:
        method.learn(session)
    assert torch.equal(method.embed(sessions[0]), before)


def test_a_state_is_taken_up_by_another(
    tmp_path: Path, recipe: Recipe, sessions: list[ImageSet], tiny_task: Task
) -> None:
    """By way of a file, in the middle of a run, over what the other one had learnt."""
    whole = learnt(recipe, sessions)
    write_state(tmp_path / "state", learnt(recipe, sessions[:2]).state())
    fresh, used = CEC(recipe, Runtime(), 0), learnt(recipe, sessions[:1], seed=1)
    used.scores(tiny_task.test)
    for other in (fresh, used):
        other.restore(read_state(tmp_path / "state"))
        assert other.sessions == 2
        assert not other.adapter.training
        assert other.scores(tiny_task.test).shape == (40, 6)
        other.learn(sessions[2])
        assert torch.equal(other.scores(tiny_task.test), whole.scores(tiny_task.test))


def test_a_state_of_another_adapter_is_refused(recipe: Recipe, sessions: list[ImageSet]) -> None:
    state = learnt(recipe, sessions[:1]).state()
    equations = override(recipe, {"method": {"adapter": AdapterConfig.equations()}})
    other = CEC(equations, Runtime(), 0)
    with pytest.raises(DataError, match="another network's"):
        other.restore(state)


@pytest.mark.parametrize(
    "config",
    [AdapterConfig.equations(), AdapterConfig(heads=2, attention_dropout=0.1)],
    ids=["equations", "heads"],
)
def test_any_adapter(
    recipe: Recipe, sessions: list[ImageSet], tiny_task: Task, config: AdapterConfig
) -> None:
    recipe = override(recipe, {"method": {"adapter": config}})
    scores = learnt(recipe, sessions).scores(tiny_task.test)
    assert scores.shape == (40, 8)
    assert bool(torch.isfinite(scores).all())


def test_seeds(recipe: Recipe, sessions: list[ImageSet], tiny_task: Task) -> None:
    one, again, other = (
        learnt(recipe, sessions, seed).scores(tiny_task.test) for seed in (0, 0, 1)
    )
    assert torch.equal(one, again)
    assert not torch.allclose(one, other, atol=1e-2)


def test_its_two_stages_are_told(recipe: Recipe, sessions: list[ImageSet]) -> None:
    told: list[Round] = []
    learnt(recipe, sessions, runtime=Runtime(on_round=told.append))
    assert [(r.stage, r.round) for r in told] == [
        ("pretrain", 1),
        ("pretrain", 2),
        ("pseudo-incremental", 1),
        ("pseudo-incremental", 2),
    ]


def test_before_fit_it_says_what_to_call(recipe: Recipe) -> None:
    with pytest.raises(NotFittedError, match="call fit with the base session first"):
        _ = CEC(recipe, Runtime(), 0).adapter


def test_plain_meta_learning(
    tiny_task: Task,
    small_recipe: Callable[..., Recipe],
    recipe: Recipe,
    sessions: list[ImageSet],
) -> None:
    """The same method but for what stage 2 is made of."""
    plain = small_recipe("quick", tiny_task.benchmark, "cec-meta", "pseudo.encoder_lr=0.02")
    assert plain == override(recipe, {"method": {"pseudo": {"angles": ()}}})
    method = METHODS["cec-meta"].build(plain, Runtime(), 0)
    assert isinstance(method, CEC)
    method.fit(sessions[0])
    for session in sessions[1:]:
        method.learn(session)
    scores = method.scores(tiny_task.test)
    assert scores.shape == (40, 8)
    assert not torch.allclose(scores, learnt(recipe, sessions).scores(tiny_task.test), atol=1e-2)
