"""Test CEC: class means of the fine-tuned encoder, adapted to each other and to the query."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet, concatenate
from fewmore.errors import ConfigError, DataError, NotFittedError
from fewmore.methods import METHODS
from fewmore.methods.base import Recipe
from fewmore.methods.cec import CEC
from fewmore.methods.recipe import override
from fewmore.nn.adapter import AdapterConfig
from fewmore.training.checkpoint import read_state, write_state
from fewmore.training.runtime import Round, Runtime


@pytest.fixture
def recipe(tiny_task: Task, small_recipe: Callable[..., Recipe]) -> Recipe:
    """Two rounds of two episodes, at a rate that changes the encoder noticeably."""
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


def test_episodes_that_are_too_large_are_found_before_stage_1(
    tiny_task: Task, small_recipe: Callable[..., Recipe], sessions: list[ImageSet]
) -> None:
    sizes = ("pseudo.base_way=15", "pseudo.new_way=15")
    recipe = small_recipe("quick", tiny_task.benchmark, "cec", *sizes)
    rounds: list[Round] = []
    method = CEC(recipe, Runtime(on_round=rounds.append), 0)
    with pytest.raises(ConfigError, match=r"too small .*set pseudo\.base_way=4, pseudo\.new_way=4"):
        method.fit(sessions[0])
    assert rounds == []


def test_prototypes_are_means_of_the_tuned_encoder(
    recipe: Recipe, sessions: list[ImageSet]
) -> None:
    """Check those of the base classes too, which are computed again after stage 2."""
    method = learnt(recipe, sessions)
    expected = torch.cat([means(method.embed(session), session.labels) for session in sessions])
    prototypes = method.network.classifier.prototypes.detach()
    assert prototypes.shape == (8, 64)
    torch.testing.assert_close(prototypes, expected, rtol=1e-5, atol=1e-6)
    # Stage 2 changed the encoder, so means from stage 1 differ.
    first = CEC(recipe, Runtime(), 0).network
    first.fit(sessions[0], "cosine", 0)
    assert not torch.allclose(
        means(first.embed(sessions[0]), sessions[0].labels), prototypes[:4], rtol=1e-3
    )


def test_scores_are_the_adapters(recipe: Recipe, sessions: list[ImageSet], tiny_task: Task) -> None:
    """Check the scores after prototypes were added."""
    method = learnt(recipe, sessions)
    features = method.embed(tiny_task.test)
    with torch.no_grad():
        expected = method.adapter(features, method.network.classifier.prototypes)
    torch.testing.assert_close(method.scores_of(features), expected)
    torch.testing.assert_close(method.scores(tiny_task.test), expected)
    assert not method.adapter.training


def test_plain_cosines_of_the_tuned_encoder_are_reported_too(
    recipe: Recipe, sessions: list[ImageSet], tiny_task: Task
) -> None:
    method = learnt(recipe, sessions)
    features = method.embed(tiny_task.test)
    also = method.also_scores_of(features)
    assert list(also) == ["cosine_after_pil"]
    prototypes = torch.cat([means(method.embed(session), session.labels) for session in sessions])
    torch.testing.assert_close(
        also["cosine_after_pil"],
        16 * F.normalize(features) @ F.normalize(prototypes).T,
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


def test_the_order_of_classes_changes_only_the_order_of_scores(
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
    """Check that the encoder is frozen after the base session."""
    method = learnt(recipe, sessions[:1])
    before = method.embed(sessions[0])
    for session in sessions[1:]:
        method.learn(session)
    assert torch.equal(method.embed(sessions[0]), before)


def test_another_instance_restores_a_state(
    tmp_path: Path, recipe: Recipe, sessions: list[ImageSet], tiny_task: Task
) -> None:
    """Restore from a file, in the middle of a run, over what the other had learnt."""
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


def test_both_stages_are_reported(recipe: Recipe, sessions: list[ImageSet]) -> None:
    reports: list[Round] = []
    learnt(recipe, sessions, runtime=Runtime(on_round=reports.append))
    assert [(r.stage, r.round) for r in reports] == [
        ("pretrain", 1),
        ("pretrain", 2),
        ("pseudo-incremental", 1),
        ("pseudo-incremental", 2),
    ]


def test_the_adapter_before_fit_raises_not_fitted(recipe: Recipe) -> None:
    with pytest.raises(NotFittedError, match="call fit with the base session first"):
        _ = CEC(recipe, Runtime(), 0).adapter


def test_plain_meta_learning(
    tiny_task: Task,
    small_recipe: Callable[..., Recipe],
    recipe: Recipe,
    sessions: list[ImageSet],
) -> None:
    """Check that only the episodes of stage 2 differ."""
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
