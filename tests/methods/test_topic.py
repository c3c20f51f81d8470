"""Test TOPIC: its neural gas, how that grows, and its losses."""

import dataclasses
import math

import pytest
import torch

from fewmore.data import augment
from fewmore.errors import ConfigError
from fewmore.methods.recipe import override
from fewmore.methods.topic import TOPIC, Config, Gas, neural_gas
from fewmore.training.learn_session import SessionConfig
from fewmore.training.runtime import Runtime


@pytest.fixture
def recipe(tiny_recipe):
    session = SessionConfig(data_init=False, epochs=8, batch=16, lr=0.01)
    return dataclasses.replace(tiny_recipe, method=Config(nodes=8, rounds=6, session=session))


@pytest.fixture
def clusters(tiny_images):
    """Return four clusters of twelve points in the plane, one a class, with an image for each."""
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    images = tiny_images(4, 12)
    return (
        images,
        centres[images.labels] + torch.randn(48, 2, generator=torch.Generator().manual_seed(0)),
        centres,
    )


def gas_of(clusters, nodes: int, seed: int = 0) -> Gas:
    images, features, _ = clusters
    return neural_gas(images, features, nodes, 30, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(5))
def test_nodes_find_the_clusters_wherever_they_start(clusters, seed):
    gas = gas_of(clusters, 4, seed)
    own = torch.cdist(clusters[2], gas.centroids)
    assert sorted(own.argmin(1).tolist()) == [0, 1, 2, 3]
    assert float(own.min(1).values.max()) < 1
    images, features, _ = clusters
    for node in range(4):
        label = int(gas.images.labels[node])
        assert int(own[label].argmin()) == node, "its image is of the class of its cluster"
        nearest = int(torch.cdist(gas.centroids[node : node + 1], features).argmin())
        assert torch.equal(gas.images.image(node), images.image(nearest))


def test_a_gas_has_variances_and_edges(clusters):
    _, features, _ = clusters
    gas = gas_of(clusters, 12)
    assert gas.variances.shape == (12, 2)
    assert float(gas.variances.min()) > 0
    assert torch.equal(gas.edges, gas.edges.T)
    assert not gas.edges.diagonal().any()
    first, second = torch.cdist(features, gas.centroids).topk(2, largest=False).indices.T
    assert bool(gas.edges[first, second].all())
    assert int(gas.edges.sum()) == 2 * len(
        {frozenset(pair) for pair in zip(first.tolist(), second.tolist(), strict=True)}
    )


def test_there_are_no_more_nodes_than_images(clusters):
    gas = gas_of(clusters, 1000)
    assert len(gas) == len(gas.images) == 48
    assert torch.isfinite(gas.centroids).all()
    one = gas_of(clusters, 1)
    torch.testing.assert_close(one.centroids[0], clusters[1].mean(0))
    assert not one.edges.any()


def test_it_grows_a_node_for_each_class(clusters, tiny_images):
    gas = gas_of(clusters, 4)
    session = tiny_images(6, 3).select_classes([4, 5])
    features = torch.tensor(
        [[11.0, 1.0], [12.0, 0.0], [13.0, -1.2], [0.0, 14.0], [1.0, 15.0], [0.0, 16.0]]
    )
    grown = gas.grown(session, features)
    assert len(grown) == len(grown.images) == 6
    assert torch.equal(grown.centroids[:4], gas.centroids)
    assert torch.equal(grown.edges[:4, :4], gas.edges)
    torch.testing.assert_close(
        grown.centroids[4:], torch.stack([features[:3].mean(0), features[3:].mean(0)])
    )
    torch.testing.assert_close(grown.variances[4], gas.variances.mean(0))
    assert grown.images.labels[4:].tolist() == [4, 5]
    assert torch.equal(grown.images.image(4), session.image(1)), (
        "the nearest of the class's own images"
    )
    neighbours = {int(grown.images.labels[node]) for node in grown.edges[4].nonzero().squeeze(1)}
    assert neighbours == {1}, "the cluster that the new class lies beside"
    assert torch.equal(grown.edges, grown.edges.T)


def fitted(recipe, sessions, **settings) -> TOPIC:
    method = TOPIC(override(recipe, {"method": settings}), Runtime(), 0)
    method.fit(sessions[0])
    return method


def test_the_anchors_hold_the_nodes(recipe, sessions):
    gently = {"lr": 0.001, "frozen_norm": True}
    drift = {}
    for weight in (0.0, 5.0):
        method = fitted(recipe, sessions, session=gently, anchor=weight)
        images, centroids = method.gas.images, method.gas.centroids
        method.learn(sessions[1])
        drift[weight] = float((method.network.embed(images) - centroids).norm(dim=1).mean())
    assert drift[5.0] < drift[0.0]


def test_rehearsal_trains_the_old_classes_too(recipe, sessions):
    losses = {}
    for rehearse in (False, True):
        method = fitted(recipe, sessions, rehearse=rehearse)
        images = method.gas.images
        method.learn(sessions[1])
        scores = method.network.scores_of(method.network.embed(images))
        losses[rehearse] = float(torch.nn.functional.cross_entropy(scores, images.labels))
    assert losses[True] < losses[False]


def test_min_max_pulls_a_class_to_its_node_and_away_from_neighbours(recipe, sessions):
    nearer = {}
    for weight in (0.0, 0.2):
        method = fitted(recipe, sessions, min_max=weight, anchor=0.0)
        grown = method.gas.grown(sessions[1], method.network.embed(sessions[1]))
        method.learn(sessions[1])
        distances = torch.cdist(method.network.embed(sessions[1]), grown.centroids)
        own, labels = 8 + sessions[1].labels, grown.images.labels
        rivals = grown.edges[own] & (labels != labels[own][:, None])
        nearer[weight] = float(distances[rivals].mean() - distances[range(6), own].mean())
    assert nearer[0.2] > nearer[0.0]


def test_nodes_lie_at_plain_features_whatever_the_test_views(recipe, sessions):
    """Anchors are compared with their nodes in the plain view; scores average the views."""
    transform = dataclasses.replace(recipe.transform, test_views=("plain", "rot180"))
    both = fitted(dataclasses.replace(recipe, transform=transform), sessions)
    plain = fitted(recipe, sessions)
    both.learn(sessions[1])
    plain.learn(sessions[1])
    assert torch.equal(both.gas.centroids, plain.gas.centroids)
    assert not torch.allclose(both.scores(sessions[0]), plain.scores(sessions[0]), atol=1e-3)


@pytest.mark.parametrize("rehearse", [False, True])
def test_the_loss_is_the_papers(recipe, sessions, naive, rehearse):
    """Compare with the anchor loss and the min-max loss, computed node by node.

    Drift is measured in standard deviations and counts linearly beyond one. Every edge is there,
    also from a new node to itself: only nodes of other classes push.
    """
    method = fitted(recipe, sessions, anchor=2.0, min_max=3.0, rehearse=rehearse)
    session, network = sessions[1], method.network
    grown = method.gas.grown(session, network.embed(session))
    gas = dataclasses.replace(grown, edges=torch.ones_like(grown.edges))
    generator = torch.Generator().manual_seed(1)
    network.classifier = network.classifier.grown(torch.randn(2, 64, generator=generator))
    with torch.no_grad():
        for weight in network.backbone.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    nodes = torch.tensor([6, 1, 3])
    row = torch.cat([torch.arange(6), nodes])
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        loss = float(method._loss(session, gas)(row, generator))
        view = torch.cat(
            [
                augment.train_view(session, row[:6], recipe.transform, generator.manual_seed(2)),
                augment.test_view(gas.images, nodes, recipe.transform),
            ]
        )
        features = network.backbone(view)
        logits = network.classifier(features)
    labels = torch.cat([session.labels + 4, gas.images.labels[nodes]])
    count = 9 if rehearse else 6
    expected = naive.cross_entropy(logits[:count], labels[:count])

    drifts = []
    for anchor, node in zip(features[6:].tolist(), nodes.tolist(), strict=True):
        for value, centre, variance in zip(
            anchor, gas.centroids[node].tolist(), gas.variances[node].tolist(), strict=True
        ):
            drift = abs(value - centre) / math.sqrt(variance)
            drifts.append(drift**2 / 2 if drift < 1 else drift - 0.5)
    expected += 2 * sum(drifts) / len(drifts)

    pull = [math.dist(features[i], gas.centroids[8 + int(session.labels[i])]) for i in range(6)]
    push = [
        math.dist(features[:6][session.labels == new].mean(0), gas.centroids[node])
        for new in (0, 1)
        for node in range(10)
        if int(gas.images.labels[node]) != 4 + new
    ]
    assert len(push) == 2 * 9
    expected += 3 * (sum(pull) / len(pull) - sum(push) / len(push))
    assert loss == pytest.approx(expected, rel=1e-4)


def test_old_nodes_stay_and_new_ones_follow_the_network(recipe, sessions):
    method = fitted(recipe, sessions)
    before = method.gas
    method.learn(sessions[1])
    after = method.gas
    assert torch.equal(after.centroids[:8], before.centroids)
    features = method.network.embed(sessions[1])
    torch.testing.assert_close(
        after.centroids[8:],
        torch.stack([features[sessions[1].labels == c].mean(0) for c in range(2)]),
    )
    method.learn(sessions[2])
    assert method.images_kept() == len(method.gas) == 12
    assert method.gas.images.labels[8:].tolist() == [4, 5, 6, 7]


def test_a_state_from_before_the_first_release_is_read(clusters):
    gas = gas_of(clusters, 4)
    state = gas.state()
    state["pictures"] = state.pop("images")
    read = Gas.from_state(state, torch.device("cpu"))
    assert torch.equal(read.images.storage, gas.images.storage)


@pytest.mark.parametrize(
    "wrong", [{"nodes": 0}, {"rounds": 0}, {"anchor": -1.0}, {"min_max": -1.0}]
)
def test_settings_that_cannot_be(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
