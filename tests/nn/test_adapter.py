"""The adapter in closed form, against the graph that it stands for: N + 1 nodes for every query, built as the paper reads."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fewmore.errors import ConfigError
from fewmore.nn import adapter as module
from fewmore.nn.adapter import Adapter, AdapterConfig, Context, _Dropout
from fewmore.nn.backbones import parameters

SPACING = (
    16 * torch.finfo(torch.float32).eps
)  # of float32 numbers from 16 on: 1.9e-6. Scores go up to 16
FLOOR = (
    4 * SPACING
)  # 7.6e-6: a float32 score is a sum of a few terms of that size, however it is computed
SHAKES = 8
PROGRAM = AdapterConfig()  # the authors' program


def naive(
    adapter: Adapter, features: Tensor, prototypes: Tensor, drop: _Dropout | None = None
) -> Tensor:
    """A graph for each query, of the prototypes and the query: (q, N) scores by way of (q, N + 1, d) nodes."""
    config, classes = adapter.config, len(prototypes)
    nodes = prototypes.expand(len(features), -1, -1)
    if config.query_node:
        nodes = torch.cat([nodes, features[:, None]], 1)
    heard = []
    for head in range(config.heads):
        asks, answers, tells = (
            nodes @ weight[head].T for weight in (adapter.queries, adapter.keys, adapter.values)
        )
        attention = (
            asks @ answers.transpose(1, 2) * (1 / math.sqrt(adapter.dim) if config.scaling else 1.0)
        ).softmax(2)
        if drop is not None:
            mask = torch.cat([drop.among[head], drop.to_query[head][:, None]], 1)
            mask = torch.cat([mask, drop.of_query[head][None]])
            attention = attention * (mask if config.query_node else mask[:classes, :classes])
        heard.append(attention @ tells)
    if adapter.output is None:
        message = sum(heard, torch.zeros(())) / config.heads
    else:
        message = torch.cat(heard, 2) @ torch.cat(list(adapter.output), 1).T + adapter.bias
    if drop is not None:
        message = message * drop.output
    nodes = nodes + message
    if not config.query_node:
        nodes = torch.cat([nodes, features[:, None]], 1)
    if config.layer_norm:
        nodes = F.layer_norm(nodes, (adapter.dim,), adapter.gain, adapter.shift, 1e-5)
    return 16 * F.cosine_similarity(nodes[:, classes:], nodes[:, :classes], dim=2)


@dataclass(frozen=True)
class Case:
    """An adapter with random weights, and random queries and prototypes for it."""

    config: AdapterConfig = PROGRAM
    classes: int = 12
    dim: int = 16
    scale: float = 1.0
    alike: bool = False  # prototypes that differ by a ten-thousandth
    seed: int = 0
    queries: int = 6

    def adapter(self) -> Adapter:
        generator = Generator().manual_seed(self.seed)
        adapter = Adapter(self.dim, self.config, generator).eval()
        with torch.no_grad():
            if adapter.gain is not None and adapter.shift is not None:
                adapter.gain.normal_(1, 0.3, generator=generator)
                adapter.shift.normal_(0, 0.3, generator=generator)
        return adapter

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Queries and prototypes, not negative, as a network's features are."""
        generator = Generator().manual_seed(self.seed + 1)
        features = torch.randn(self.queries, self.dim, generator=generator).abs() * self.scale
        prototypes = torch.randn(self.classes, self.dim, generator=generator).abs() * self.scale
        if self.alike:
            prototypes = prototypes[:1] * (
                1 + 1e-4 * torch.randn(self.classes, self.dim, generator=generator)
            )
        return features, prototypes

    def double(self) -> tuple[Adapter, Tensor, Tensor]:
        features, prototypes = self.inputs()
        return self.adapter().double(), features.double(), prototypes.double()


switches = st.builds(
    AdapterConfig,
    heads=st.integers(1, 4),
    query_node=st.booleans(),
    scaling=st.booleans(),
    output_map=st.booleans(),
    layer_norm=st.booleans(),
)
# With fewer than eight features z_j may happen to be nearly zero, and its square, a sum of large terms, then rounds more than z_j itself.
cases = st.builds(
    Case,
    config=switches,
    classes=st.one_of(st.just(1), st.integers(1, 40)),
    dim=st.integers(8, 48),
    scale=st.floats(-1, 2).map(lambda exponent: 10**exponent),
    alike=st.booleans(),
    seed=st.integers(0, 2**32),
    queries=st.integers(1, 6),
)

SWITCHED = {
    "program": PROGRAM,
    "equations": AdapterConfig.equations(),
    "heads": AdapterConfig(heads=3),
    "heads, no output map": AdapterConfig(heads=2, output_map=False),
    "no query node": AdapterConfig(query_node=False),
    "no layer norm": AdapterConfig(layer_norm=False),
    "no scaling": AdapterConfig(scaling=False),
}
each_switch = pytest.mark.parametrize("config", SWITCHED.values(), ids=SWITCHED)


# Against the graph


@settings(max_examples=120, deadline=None)
@given(cases)
def test_scores_are_the_graphs(case: Case) -> None:
    adapter, features, prototypes = case.double()
    with torch.no_grad():
        scores = adapter(features, prototypes)
        assert scores.shape == (case.queries, case.classes)
        assert float((scores - naive(adapter, features, prototypes)).abs().max()) <= 1e-10


@settings(max_examples=100, deadline=None, derandomize=True)  # luck never evens out entirely
@given(cases)
def test_float32_rounds_hardly_more_than_the_graph_does(case: Case) -> None:
    """Root mean square error against float64: at most twice the naive graph's, plus a floor of four float32 spacings at 16.

    Where norms are large, a rounding may decide which of two classes has all of a node's attention. So that this luck evens out, each
    case is taken several times, its inputs shaken by a millionth.
    """
    adapter, (features, prototypes) = case.adapter(), case.inputs()
    exact = copy.deepcopy(adapter).double()
    generator = Generator().manual_seed(case.seed)
    ours, graphs = torch.zeros(()), torch.zeros(())
    with torch.no_grad():
        for _ in range(SHAKES):
            x, w = (
                t * (1 + 1e-6 * torch.randn(t.shape, generator=generator))
                for t in (features, prototypes)
            )
            right = naive(exact, x.double(), w.double())
            ours = ours + (adapter(x, w) - right).square().mean()
            graphs = graphs + (naive(adapter, x, w) - right).square().mean()
    assert float((ours / SHAKES).sqrt()) <= 2 * float((graphs / SHAKES).sqrt()) + FLOOR


def test_ties_at_large_norms_stay_ties() -> None:
    """Whole numbers, so that every similarity is exact: prototypes and query have the same one, 40,000, and share attention evenly."""
    adapter = Case(classes=3).adapter()
    prototypes = torch.full((3, 16), 100.0)
    query = 100.0 + 50.0 * (-1.0) ** torch.arange(16)[None]
    with torch.no_grad():
        adapter.queries.copy_(torch.eye(16))
        adapter.keys.copy_(torch.eye(16))
        assert float(query @ prototypes[0] / 4) == 40_000
        right = naive(copy.deepcopy(adapter).double(), query.double(), prototypes.double())
        torch.testing.assert_close(adapter(query, prototypes).double(), right, rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_gradients_are_the_graphs(case: Case) -> None:
    """Of all parameters, features and prototypes, to eight digits of the largest number in each.

    A gradient that is zero, as of the similarities of a single class, comes out as large terms that cancel: what they round to is allowed.
    """
    adapter, features, prototypes = case.double()
    names = ["features", "prototypes", *(name for name, _ in adapter.named_parameters())]
    leaves = [features.requires_grad_(), prototypes.requires_grad_(), *adapter.parameters()]
    weights = torch.randn(
        case.queries,
        case.classes,
        dtype=torch.float64,
        generator=Generator().manual_seed(case.seed),
    )
    ours = torch.autograd.grad((adapter(features, prototypes) * weights).sum(), leaves)
    graphs = torch.autograd.grad((naive(adapter, features, prototypes) * weights).sum(), leaves)
    for name, one, other in zip(names, ours, graphs, strict=True):
        tolerance = 1e-8 * float(other.abs().max()) + 1e-13 * max(1.0, case.scale**2)
        torch.testing.assert_close(
            one, other, rtol=1e-8, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


@each_switch
def test_at_the_networks_own_sizes(config: AdapterConfig) -> None:
    adapter, features, prototypes = Case(config, classes=100, dim=64, scale=2.0).double()
    with torch.no_grad():
        torch.testing.assert_close(
            adapter(features, prototypes), naive(adapter, features, prototypes), rtol=0, atol=1e-10
        )


def test_the_equations_alone() -> None:
    """Equations 2 to 5, one number at a time, and the cosine classifier."""
    adapter, features, prototypes = Case(AdapterConfig.equations(), classes=5, dim=8).double()
    phi, theta, u = (
        weight[0].detach() for weight in (adapter.queries, adapter.keys, adapter.values)
    )
    updated = []
    for w_j in prototypes:
        e_j = [float((phi @ w_j) @ (theta @ w_k)) for w_k in prototypes]  # 2
        a_j = [math.exp(e_jk) / sum(math.exp(e_jh) for e_jh in e_j) for e_jk in e_j]  # 3
        updated.append(
            w_j + sum(a_jk * (u @ w_k) for a_jk, w_k in zip(a_j, prototypes, strict=True))
        )  # 4
    classifier = torch.stack(updated)  # 5
    expected = torch.stack(
        [torch.stack([16 * (x @ w) / (x.norm() * w.norm()) for w in classifier]) for x in features]
    )
    with torch.no_grad():
        torch.testing.assert_close(
            adapter.adapted(adapter.context(prototypes)), classifier, rtol=1e-10, atol=1e-12
        )
        torch.testing.assert_close(adapter(features, prototypes), expected, rtol=1e-10, atol=1e-12)
    assert adapter.output is None
    assert adapter.bias is None
    assert adapter.gain is None
    assert adapter.shift is None


@each_switch
def test_adapted_rows_are_those_of_the_graph_without_a_query(config: AdapterConfig) -> None:
    adapter, _, prototypes = Case(config).double()
    alone = copy.deepcopy(adapter)
    alone.config = replace(config, query_node=False)
    with torch.no_grad():
        rows = adapter.adapted(adapter.context(prototypes))
        # A query that the layer norm, if any, leaves as it is finds each row at its own angle.
        probes = torch.eye(adapter.dim, dtype=torch.float64)
        seen = (
            probes
            if adapter.gain is None
            else F.layer_norm(probes, (adapter.dim,), adapter.gain, adapter.shift, 1e-5)
        )
        cosines = 16 * F.cosine_similarity(seen[:, None], rows[None], dim=2)
        torch.testing.assert_close(naive(alone, probes, prototypes), cosines, rtol=0, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(cases, st.randoms(use_true_random=False))
def test_permuting_classes_permutes_scores(case: Case, dice: Any) -> None:
    adapter, features, prototypes = case.double()
    order = list(range(case.classes))
    dice.shuffle(order)
    with torch.no_grad():
        torch.testing.assert_close(
            adapter(features, prototypes[order]),
            adapter(features, prototypes)[:, order],
            rtol=0,
            atol=1e-10,
        )


@each_switch
def test_queries_do_not_see_one_another(config: AdapterConfig) -> None:
    adapter, features, prototypes = Case(config).double()
    with torch.no_grad():
        one_by_one = torch.cat([adapter(x[None], prototypes) for x in features])
        torch.testing.assert_close(adapter(features, prototypes), one_by_one, rtol=0, atol=1e-12)


# What it costs


class Largest(TorchDispatchMode):
    """Notes the largest result of any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.operations = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        self.operations += 1
        return out


def largest_result(
    score: Callable[..., Tensor], adapter: Adapter, features: Tensor, prototypes: Tensor
) -> int:
    """Forwards and backwards."""
    with Largest() as seen:
        loss = score(features.requires_grad_(), prototypes.requires_grad_()).square().mean()
        forward = seen.operations
        loss.backward()
    assert seen.operations > 1.5 * forward, "the backward pass was not watched"
    assert all(p.grad is not None for p in adapter.parameters())
    return seen.numbers


@each_switch
def test_nothing_of_queries_by_classes_by_features_is_ever_made(config: AdapterConfig) -> None:
    q, n, d = 50, 60, 64
    case = Case(
        replace(config, attention_dropout=0.1, output_dropout=0.1), classes=n, dim=d, queries=q
    )
    adapter = case.adapter().train()
    assert largest_result(adapter, adapter, *case.inputs()) < q * n * d
    adapter = case.adapter()
    assert largest_result(lambda x, w: naive(adapter, x, w), adapter, *case.inputs()) >= q * n * d


@each_switch
@pytest.mark.parametrize("training", [False, True])
def test_in_blocks_or_at_once(
    monkeypatch: pytest.MonkeyPatch, config: AdapterConfig, training: bool
) -> None:
    case = Case(replace(config, attention_dropout=0.2), classes=50, queries=40)
    adapter, features, prototypes = case.double()
    adapter.train(training)
    with torch.no_grad():
        whole = adapter(features, prototypes, Generator().manual_seed(5))
        monkeypatch.setitem(module.BLOCK, "cpu", 1)  # sixteen nodes or queries at a time
        assert module._at_once(prototypes) == 16
        torch.testing.assert_close(
            adapter(features, prototypes, Generator().manual_seed(5)), whole, rtol=0, atol=1e-12
        )


def test_a_new_class_costs_no_product_of_all_with_all() -> None:
    """Of 300 classes with 8 features, the 300 × 300 similarities are by far the largest; adding or removing never makes them."""
    case = Case(classes=300, dim=8)
    adapter, (_, prototypes) = case.adapter(), case.inputs()
    with torch.no_grad(), Largest() as seen:
        context = adapter.context(prototypes)
    assert seen.numbers == 300 * 300
    with torch.no_grad(), Largest() as seen:
        adapter.remove(adapter.add(context, prototypes[0]), 7)
    assert seen.numbers < 300 * 300 / 10


# Classes that come and go


def in_double(adapter: Adapter, context: Context) -> Context:
    """The same context, to be scored without further rounding."""
    parts = {field.name: getattr(context, field.name) for field in fields(context)}
    double = {
        name: part.double()
        for name, part in parts.items()
        if name not in ("gram", "along_shift", "room")
    }
    return adapter._completed(**double)


class Evolving:
    """A context that is kept up to date, in float32, and what scores it gives beside those of one computed anew."""

    def __init__(self, case: Case, first: int = 1) -> None:
        self.adapter = case.adapter().requires_grad_(False)
        self.exact = copy.deepcopy(self.adapter).double()
        self.features, self.all = case.inputs()
        self.rows = self.all[:first]
        self.context = self.adapter.context(self.rows)

    def add(self, row: Tensor) -> None:
        self.rows = torch.cat([self.rows, row[None]])
        self.context = self.adapter.add(self.context, row)

    def remove(self, index: int) -> None:
        self.rows = torch.cat([self.rows[:index], self.rows[index + 1 :]])
        self.context = self.adapter.remove(self.context, index)

    def replace(self, index: int, row: Tensor) -> None:
        self.rows = torch.cat([self.rows[:index], row[None], self.rows[index + 1 :]])
        self.context = self.adapter.replace(self.context, index, row)

    def error(self) -> float:
        """The largest difference from the scores of a context computed anew."""
        assert torch.equal(self.context.rows, self.rows)
        return float(
            (self._scores(self.context) - self._scores(self.adapter.context(self.rows))).abs().max()
        )

    def rounding(self) -> float:
        """How far the scores of a context computed anew are themselves from those of float64."""
        exact = self.exact.scores(self.features.double(), self.exact.context(self.rows.double()))
        return float((self._scores(self.adapter.context(self.rows)) - exact).abs().max())

    def _scores(self, context: Context) -> Tensor:
        return self.exact.scores(self.features.double(), in_double(self.exact, context))


@pytest.mark.parametrize("config", [PROGRAM, AdapterConfig(heads=2)], ids=["one head", "two heads"])
def test_a_thousand_classes_added_one_by_one(config: AdapterConfig) -> None:
    evolving = Evolving(Case(config, classes=1001, scale=0.5))
    for row in evolving.all[1:]:
        evolving.add(row)
    assert len(evolving.context) == 1001
    assert evolving.error() <= 1e-5


@pytest.mark.parametrize("alike", [False, True], ids=["different", "near-duplicates"])
def test_most_of_a_thousand_classes_removed_one_by_one(alike: bool) -> None:
    """Each removal magnifies what was rounded before it; from a thousand to ten that would be a hundredfold."""
    evolving = Evolving(Case(classes=1000, dim=32, scale=0.5, alike=alike), first=1000)
    dice = Generator().manual_seed(0)
    worst = 0.0
    while len(evolving.rows) > 10:
        evolving.remove(int(torch.randint(len(evolving.rows), (), generator=dice)))
        if len(evolving.rows) % 90 == 10:
            worst = max(worst, evolving.error())
    assert worst <= 1e-5


def test_a_thousand_refinements() -> None:
    evolving = Evolving(Case(classes=40, scale=0.5), first=40)
    dice = Generator().manual_seed(0)
    for _ in range(1000):
        index = int(torch.randint(40, (), generator=dice))
        evolving.replace(index, evolving.all[index] * (1 + 0.2 * torch.randn(16, generator=dice)))
    assert evolving.error() <= 1e-5


@settings(max_examples=60, deadline=None)
@given(
    cases,
    st.lists(
        st.tuples(st.sampled_from(["add", "remove", "replace"]), st.integers(0, 10**6)), max_size=12
    ),
)
def test_any_changes_in_any_order(case: Case, changes: list[tuple[str, int]]) -> None:
    """In float64, so that nothing but a wrong formula shows, whatever the norms."""
    adapter, features, prototypes = case.double()
    adapter.requires_grad_(False)
    rows, context = list(prototypes), adapter.context(prototypes)
    for number, (change, place) in enumerate(changes):
        new = prototypes[place % len(prototypes)] * (1 + 0.1 * math.sin(number))
        index = place % max(1, len(rows))
        if change == "add" or not rows:
            rows.append(new)
            context = adapter.add(context, new)
        elif change == "remove":
            del rows[index]
            context = adapter.remove(context, index)
        else:
            rows[index] = new
            context = adapter.replace(context, index, new)
    assert len(context) == len(rows)
    if rows:
        anew = adapter.context(torch.stack(rows))
        torch.testing.assert_close(
            adapter.scores(features, context), adapter.scores(features, anew), rtol=0, atol=1e-8
        )


def test_few_nodes_are_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """On average, and where attention is even: the new one when a class is refined, some ten for each class that is removed for good."""
    evolving = Evolving(Case(classes=200, dim=8, scale=0.1), first=200)
    anew = []
    attention = evolving.adapter._attention

    def counted(asking: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        anew.append(asking.shape[1])
        return attention(asking, *others)

    monkeypatch.setattr(evolving.adapter, "_attention", counted)
    for index in range(100):
        evolving.replace(index, evolving.all[index] * 1.1)
    assert anew == [1] * 100
    anew.clear()
    for _ in range(100):
        evolving.remove(50)
    assert 100 < sum(anew) < 20 * 100


def greedy(seed: int) -> tuple[Evolving, int]:
    """A context in which some nodes give next to all of their attention to one class, and that class."""
    evolving = Evolving(Case(classes=20, scale=12.0, seed=seed), first=20)
    e = evolving.context.asking[0] @ evolving.rows.T
    share = (e - evolving.context.largest[0][:, None] - evolving.context.log_rest[0][:, None]).exp()
    held = (share > 0.999).sum(0)
    favourite = int(held.argmax())
    assert int(held[favourite]) >= 3, "this case does not have what it is to test"
    return evolving, favourite


def assert_as_good_as_anew(evolving: Evolving) -> None:
    """To 1e-5, and twice the error of a context computed anew, which is no less where norms are large."""
    assert evolving.error() <= 1e-5 + 2 * evolving.rounding()


@pytest.mark.parametrize("seed", range(6))
def test_removing_the_class_that_had_all_attention(seed: int) -> None:
    evolving, favourite = greedy(seed)
    evolving.remove(favourite)
    assert_as_good_as_anew(evolving)


@pytest.mark.parametrize("seed", range(6))
def test_refining_the_class_that_had_all_attention(seed: int) -> None:
    evolving, favourite = greedy(seed)
    evolving.replace(favourite, evolving.rows[favourite] * 0.9)
    assert_as_good_as_anew(evolving)


@pytest.mark.parametrize("seed", range(6))
def test_removing_two_near_duplicates_that_had_all_attention(seed: int) -> None:
    """After the first one is gone the other has it all, and then that one goes."""
    evolving, favourite = greedy(seed)
    evolving.add(evolving.rows[favourite] * (1 - 1e-5))
    evolving.remove(favourite)
    assert_as_good_as_anew(evolving)
    evolving.remove(len(evolving.rows) - 1)
    assert_as_good_as_anew(evolving)


def test_a_context_may_become_empty_and_grow_again() -> None:
    evolving = Evolving(Case(classes=3))
    evolving.remove(0)
    assert len(evolving.context) == 0
    for row in evolving.all:
        evolving.add(row)
    assert evolving.error() <= 1e-5


def test_two_additions_to_one_context_do_not_meet() -> None:
    evolving = Evolving(Case(), first=4)
    adapter, past = evolving.adapter, evolving.adapter.add(evolving.context, evolving.all[4])
    one, other = adapter.add(past, evolving.all[5]), adapter.add(past, evolving.all[6])
    for context, last in ((one, 5), (other, 6)):
        anew = adapter.context(evolving.all[[0, 1, 2, 3, 4, last]])
        for name in ("rows", "asking", "messages", "basis", "gram", "along_shift"):
            torch.testing.assert_close(
                getattr(context, name), getattr(anew, name), rtol=1e-4, atol=1e-4
            )


def test_changes_leave_the_old_context_alone() -> None:
    evolving = Evolving(Case(), first=12)
    old = evolving.context
    before = {
        f.name: value.clone()
        for f in fields(old)
        if isinstance(value := getattr(old, f.name), Tensor)
    }
    evolving.add(evolving.all[0] * 2)
    evolving.remove(0)
    evolving.replace(0, evolving.all[0])
    assert all(torch.equal(getattr(old, name), value) for name, value in before.items())


# Dropout


def dropping(config: AdapterConfig, rate: float = 0.3) -> tuple[Adapter, Tensor, Tensor]:
    adapter, features, prototypes = Case(
        replace(config, attention_dropout=rate, output_dropout=rate)
    ).double()
    return adapter.train(), features, prototypes


@each_switch
def test_a_rate_of_zero_drops_nothing(config: AdapterConfig) -> None:
    adapter, features, prototypes = dropping(config, rate=0.0)
    with torch.no_grad():
        trained = adapter(features, prototypes, Generator().manual_seed(0))
        assert torch.equal(trained, adapter.eval()(features, prototypes))


@each_switch
def test_testing_drops_nothing(config: AdapterConfig) -> None:
    adapter, features, prototypes = dropping(config)
    with torch.no_grad():
        tested = adapter.eval()(features, prototypes)
        assert torch.equal(tested, adapter(features, prototypes, Generator().manual_seed(3)))
        torch.testing.assert_close(tested, naive(adapter, features, prototypes), rtol=0, atol=1e-10)


@each_switch
def test_the_generator_decides_what_is_dropped(config: AdapterConfig) -> None:
    adapter, features, prototypes = dropping(config)
    before = torch.get_rng_state()
    with torch.no_grad():
        one, again, other = (
            adapter(features, prototypes, Generator().manual_seed(seed)) for seed in (0, 0, 1)
        )
    assert torch.equal(one, again)
    assert not torch.allclose(one, other, atol=1e-3)
    assert torch.equal(torch.get_rng_state(), before)


@each_switch
def test_what_is_dropped_is_dropped_from_the_graph(config: AdapterConfig) -> None:
    """Scores and gradients with one mask for the whole batch."""
    adapter, features, prototypes = dropping(config)
    drop = _Dropout(adapter, features.device, len(prototypes), Generator().manual_seed(4))
    ours = adapter(features, prototypes, Generator().manual_seed(4))
    graphs = naive(adapter, features, prototypes, drop)
    torch.testing.assert_close(ours, graphs, rtol=0, atol=1e-10)
    leaves = list(adapter.parameters())
    for one, other in zip(
        *(torch.autograd.grad(s.square().sum(), leaves) for s in (ours, graphs)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8 * float(other.abs().max()))


def test_masks_keep_the_mean() -> None:
    adapter = Adapter(64, AdapterConfig(heads=4, attention_dropout=0.25, output_dropout=0.5))
    drop = _Dropout(adapter, torch.device("cpu"), 100, Generator().manual_seed(0))
    assert drop.among.shape == (4, 100, 100)
    assert set(drop.among.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert float(drop.among.mean()) == pytest.approx(1, abs=0.02)
    assert drop.to_query.shape == (4, 100)
    assert drop.of_query.shape == (4, 101)
    assert drop.output.shape == (64,)
    assert set(drop.output.unique().tolist()) == {0.0, 2.0}


# Parameters and settings


@pytest.mark.parametrize(("dim", "count"), [(64, 16_576), (512, 1_050_112)])
def test_as_many_parameters_as_published(dim: int, count: int) -> None:
    assert parameters(Adapter(dim)) == count


def test_weights_start_as_published() -> None:
    """Normal, with the variance 1/d of the projections and of Xavier's rule for the output map; the layer norm as the identity."""
    adapter = Adapter(64, generator=Generator().manual_seed(0))
    assert adapter.output is not None
    assert adapter.bias is not None
    for weight in (adapter.queries, adapter.keys, adapter.values, adapter.output):
        assert float(weight.detach().std()) == pytest.approx(1 / 8, rel=0.05)
        assert float(weight.detach().mean()) == pytest.approx(0, abs=0.01)
    assert float(adapter.bias.detach().abs().max()) <= 1 / 8
    assert torch.equal(adapter.gain, torch.ones(64))
    assert torch.equal(adapter.shift, torch.zeros(64))


def test_the_generator_decides_the_weights() -> None:
    before = torch.get_rng_state()
    one, again, other = (Adapter(8, generator=Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.queries, other.queries)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"heads": 0}, "^adapter: heads must be at least 1, not 0$"),
        ({"attention_dropout": 1.0}, r"^adapter: attention_dropout must lie in \[0, 1\), not 1.0$"),
        ({"output_dropout": -0.1}, r"^adapter: output_dropout must lie in \[0, 1\), not -0.1$"),
        ({"attention_dropout": float("nan")}, r"attention_dropout must lie in \[0, 1\), not nan"),
        (
            {"heads": -2, "output_dropout": 2.0},
            r"heads must be at least 1, not -2; output_dropout must lie in \[0, 1\), not 2.0",
        ),
    ],
)
def test_settings_that_cannot_be_are_named(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        AdapterConfig(**changed)
