"""Compare the adapter's closed form with the graph it stands for: N + 1 nodes for each query."""

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
from fewmore.nn import adapter as adapter_module
from fewmore.nn.adapter import Adapter, AdapterConfig, DropoutMasks
from fewmore.nn.adapter_updates import add_class, remove_class, replace_class
from fewmore.nn.closed_form import CLASS_AXIS, Context, basis_products

# Scores go up to 16, where float32 numbers are 1.9e-6 apart. A float32 score is a sum of a few
# terms of that size, however it is computed.
SPACING = 16 * torch.finfo(torch.float32).eps
FLOOR = 4 * SPACING
PERTURBATIONS = 8
PROGRAM = AdapterConfig()  # the authors' program


def naive_scores(
    adapter: Adapter, features: Tensor, prototypes: Tensor, masks: DropoutMasks | None = None
) -> Tensor:
    """Build a graph of prototypes and query for each query: (q, N) from (q, N + 1, d) nodes."""
    config = adapter.config
    classes = len(prototypes)
    nodes = prototypes.expand(len(features), -1, -1)
    if config.query_node:
        nodes = torch.cat([nodes, features[:, None]], 1)
    scale = 1 / math.sqrt(adapter.dim) if config.scaling else 1.0
    outputs = []
    for head in range(config.heads):
        queries = nodes @ adapter.queries[head].T
        keys = nodes @ adapter.keys[head].T
        values = nodes @ adapter.values[head].T
        attention = (queries @ keys.transpose(1, 2) * scale).softmax(2)
        if masks is not None:
            mask = torch.cat([masks.attention[head], masks.query_column[head][:, None]], 1)
            mask = torch.cat([mask, masks.query_row[head][None]])
            attention = attention * (mask if config.query_node else mask[:classes, :classes])
        outputs.append(attention @ values)
    if adapter.output is None:
        output = sum(outputs, torch.zeros(())) / config.heads
    else:
        output = torch.cat(outputs, 2) @ torch.cat(list(adapter.output), 1).T + adapter.bias
    if masks is not None:
        output = output * masks.output
    nodes = nodes + output
    if not config.query_node:
        nodes = torch.cat([nodes, features[:, None]], 1)
    if config.layer_norm:
        nodes = F.layer_norm(nodes, (adapter.dim,), adapter.gain, adapter.shift, 1e-5)
    return 16 * F.cosine_similarity(nodes[:, classes:], nodes[:, :classes], dim=2)


@dataclass(frozen=True)
class Case:
    """Make an adapter with random weights, and random queries and prototypes for it."""

    config: AdapterConfig = PROGRAM
    classes: int = 12
    dim: int = 16
    scale: float = 1.0
    near_duplicates: bool = False  # prototypes that differ by a ten-thousandth
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
        """Return queries and prototypes, not negative, as a network's features are."""
        generator = Generator().manual_seed(self.seed + 1)
        features = torch.randn(self.queries, self.dim, generator=generator).abs() * self.scale
        prototypes = torch.randn(self.classes, self.dim, generator=generator).abs() * self.scale
        if self.near_duplicates:
            noise = torch.randn(self.classes, self.dim, generator=generator)
            prototypes = prototypes[:1] * (1 + 1e-4 * noise)
        return features, prototypes

    def double(self) -> tuple[Adapter, Tensor, Tensor]:
        features, prototypes = self.inputs()
        return self.adapter().double(), features.double(), prototypes.double()


configs = st.builds(
    AdapterConfig,
    heads=st.integers(1, 4),
    query_node=st.booleans(),
    scaling=st.booleans(),
    output_map=st.booleans(),
    layer_norm=st.booleans(),
)
# With fewer than eight features z_j may happen to be nearly zero, and its square, a sum of large
# terms, then rounds more than z_j itself.
cases = st.builds(
    Case,
    config=configs,
    classes=st.one_of(st.just(1), st.integers(1, 40)),
    dim=st.integers(8, 48),
    scale=st.floats(-1, 2).map(lambda exponent: 10**exponent),
    near_duplicates=st.booleans(),
    seed=st.integers(0, 2**32),
    queries=st.integers(1, 6),
)

CONFIGS = {
    "program": PROGRAM,
    "equations": AdapterConfig.equations(),
    "heads": AdapterConfig(heads=3),
    "heads, no output map": AdapterConfig(heads=2, output_map=False),
    "no query node": AdapterConfig(query_node=False),
    "no layer norm": AdapterConfig(layer_norm=False),
    "no scaling": AdapterConfig(scaling=False),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


# Compared with the graph


@settings(max_examples=120, deadline=None)
@given(cases)
def test_scores_equal_the_graphs(case: Case) -> None:
    adapter, features, prototypes = case.double()
    with torch.no_grad():
        scores = adapter(features, prototypes)
        assert scores.shape == (case.queries, case.classes)
        assert float((scores - naive_scores(adapter, features, prototypes)).abs().max()) <= 1e-10


# Derandomized: the averages below still depend a little on luck.
@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases)
def test_float32_rounds_hardly_more_than_the_graph_does(case: Case) -> None:
    """Allow twice the naive graph's root mean square error against float64, plus a floor.

    Where norms are large, a rounding error may decide which of two classes gets all of a node's
    attention. So that this evens out, each case is run several times on perturbed inputs.
    """
    adapter = case.adapter()
    features, prototypes = case.inputs()
    double = copy.deepcopy(adapter).double()
    generator = Generator().manual_seed(case.seed)

    def perturbed(tensor: Tensor) -> Tensor:
        return tensor * (1 + 1e-6 * torch.randn(tensor.shape, generator=generator))

    closed_form_errors, naive_errors = [], []
    with torch.no_grad():
        for _ in range(PERTURBATIONS):
            x = perturbed(features)
            w = perturbed(prototypes)
            expected = naive_scores(double, x.double(), w.double())
            closed_form_errors.append((adapter(x, w) - expected).square().mean())
            naive_errors.append((naive_scores(adapter, x, w) - expected).square().mean())
    closed_form_error = float(torch.stack(closed_form_errors).mean().sqrt())
    naive_error = float(torch.stack(naive_errors).mean().sqrt())
    assert closed_form_error <= 2 * naive_error + FLOOR


def test_ties_at_large_norms_stay_ties() -> None:
    """Use integers, so that all logits are exactly 40,000 and attention is shared evenly."""
    adapter = Case(classes=3).adapter()
    prototypes = torch.full((3, 16), 100.0)
    query = 100.0 + 50.0 * (-1.0) ** torch.arange(16)[None]
    with torch.no_grad():
        adapter.queries.copy_(torch.eye(16))
        adapter.keys.copy_(torch.eye(16))
        assert float(query @ prototypes[0] / 4) == 40_000
        double = copy.deepcopy(adapter).double()
        expected = naive_scores(double, query.double(), prototypes.double())
        torch.testing.assert_close(adapter(query, prototypes).double(), expected, rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_gradients_equal_the_graphs(case: Case) -> None:
    """Compare all parameters, features and prototypes to eight digits of the largest number.

    A gradient that is zero, as that of the logits of a single class, is a sum of large terms that
    cancel: their rounding errors are allowed.
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
    loss = (adapter(features, prototypes) * weights).sum()
    naive_loss = (naive_scores(adapter, features, prototypes) * weights).sum()
    gradients = torch.autograd.grad(loss, leaves)
    naive_gradients = torch.autograd.grad(naive_loss, leaves)
    for name, actual, expected in zip(names, gradients, naive_gradients, strict=True):
        tolerance = 1e-8 * float(expected.abs().max()) + 1e-12 * max(1.0, case.scale**2)
        torch.testing.assert_close(
            actual,
            expected,
            rtol=1e-8,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@each_config
def test_sizes_of_cifar100(config: AdapterConfig) -> None:
    adapter, features, prototypes = Case(config, classes=100, dim=64, scale=2.0).double()
    with torch.no_grad():
        expected = naive_scores(adapter, features, prototypes)
        torch.testing.assert_close(adapter(features, prototypes), expected, rtol=0, atol=1e-10)


def test_the_equations_alone() -> None:
    """Compute equations 2 to 5 and the cosine classifier one number at a time."""
    adapter, features, prototypes = Case(AdapterConfig.equations(), classes=5, dim=8).double()
    phi = adapter.queries[0].detach()
    theta = adapter.keys[0].detach()
    u = adapter.values[0].detach()
    adapted = []
    for w_j in prototypes:
        e_j = [float((phi @ w_j) @ (theta @ w_k)) for w_k in prototypes]  # equation 2
        total = sum(math.exp(e_jh) for e_jh in e_j)
        a_j = [math.exp(e_jk) / total for e_jk in e_j]  # equation 3
        attended = sum(a_jk * (u @ w_k) for a_jk, w_k in zip(a_j, prototypes, strict=True))
        adapted.append(w_j + attended)  # equation 4
    classifier = torch.stack(adapted)  # equation 5
    expected = torch.stack(
        [torch.stack([16 * (x @ w) / (x.norm() * w.norm()) for w in classifier]) for x in features]
    )
    with torch.no_grad():
        actual = adapter.adapted_prototypes(adapter.context(prototypes))
        torch.testing.assert_close(actual, classifier, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(adapter(features, prototypes), expected, rtol=1e-10, atol=1e-12)
    assert adapter.output is None
    assert adapter.bias is None
    assert adapter.gain is None
    assert adapter.shift is None


@each_config
def test_adapted_prototypes_equal_the_graphs_without_a_query(config: AdapterConfig) -> None:
    adapter, _, prototypes = Case(config).double()
    without_query = copy.deepcopy(adapter)
    without_query.config = replace(config, query_node=False)
    with torch.no_grad():
        adapted = adapter.adapted_prototypes(adapter.context(prototypes))
        # Cosines to unit vectors, as the layer norm leaves them, determine an adapted prototype.
        probes = torch.eye(adapter.dim, dtype=torch.float64)
        normed = probes
        if config.layer_norm:
            normed = F.layer_norm(probes, (adapter.dim,), adapter.gain, adapter.shift, 1e-5)
        cosines = 16 * F.cosine_similarity(normed[:, None], adapted[None], dim=2)
        expected = naive_scores(without_query, probes, prototypes)
        torch.testing.assert_close(cosines, expected, rtol=0, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(cases, st.randoms(use_true_random=False))
def test_permuting_classes_permutes_scores(case: Case, random: Any) -> None:
    adapter, features, prototypes = case.double()
    order = list(range(case.classes))
    random.shuffle(order)
    with torch.no_grad():
        torch.testing.assert_close(
            adapter(features, prototypes[order]),
            adapter(features, prototypes)[:, order],
            rtol=0,
            atol=1e-10,
        )


@each_config
def test_queries_are_independent(config: AdapterConfig) -> None:
    adapter, features, prototypes = Case(config).double()
    with torch.no_grad():
        one_by_one = torch.cat([adapter(x[None], prototypes) for x in features])
        torch.testing.assert_close(adapter(features, prototypes), one_by_one, rtol=0, atol=1e-12)


# Cost


class LargestResult(TorchDispatchMode):
    """Record the size of the largest result of any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0
        self.operations = 0

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
    """Return the size of the largest result, forward and backward."""
    with LargestResult() as seen:
        loss = score(features.requires_grad_(), prototypes.requires_grad_()).square().mean()
        forward = seen.operations
        loss.backward()
    assert seen.operations > 1.5 * forward, "the backward pass was not recorded"
    assert all(p.grad is not None for p in adapter.parameters())
    return seen.numbers


@each_config
def test_no_tensor_of_queries_by_classes_by_features(config: AdapterConfig) -> None:
    q, n, d = 50, 60, 64
    config = replace(config, attention_dropout=0.1, output_dropout=0.1)
    case = Case(config, classes=n, dim=d, queries=q)
    adapter = case.adapter().train()
    assert largest_result(adapter, adapter, *case.inputs()) < q * n * d
    adapter = case.adapter()

    def naive(features: Tensor, prototypes: Tensor) -> Tensor:
        return naive_scores(adapter, features, prototypes)

    assert largest_result(naive, adapter, *case.inputs()) >= q * n * d


@each_config
@pytest.mark.parametrize("training", [False, True])
def test_blocks_change_nothing(
    monkeypatch: pytest.MonkeyPatch, config: AdapterConfig, training: bool
) -> None:
    case = Case(replace(config, attention_dropout=0.2), classes=50, queries=40)
    adapter, features, prototypes = case.double()
    adapter.train(training)
    with torch.no_grad():
        whole = adapter(features, prototypes, Generator().manual_seed(5))
        monkeypatch.setitem(adapter_module.ATTENTION_BLOCK, "cpu", 1)
        assert adapter_module._block_size(prototypes) == 16  # the least
        blocks = adapter(features, prototypes, Generator().manual_seed(5))
        torch.testing.assert_close(blocks, whole, rtol=0, atol=1e-12)


def test_adding_and_removing_computes_no_full_attention() -> None:
    """Use 300 classes of 8 features: the 300 × 300 logits are by far the largest tensor."""
    case = Case(classes=300, dim=8)
    adapter = case.adapter()
    _, prototypes = case.inputs()
    with torch.no_grad(), LargestResult() as seen:
        context = adapter.context(prototypes)
    assert seen.numbers == 300 * 300
    with torch.no_grad(), LargestResult() as seen:
        remove_class(adapter, add_class(adapter, context, prototypes[0]), 7)
    assert seen.numbers < 300 * 300 / 10


# Adding, removing and replacing classes


def to_double(adapter: Adapter, context: Context) -> Context:
    """Convert a context to float64, so that scoring adds no rounding errors to its own."""
    tensors = {
        field.name: getattr(context, field.name).double()
        for field in fields(context)
        if field.name not in ("gram", "shift_products", "buffers")
    }
    gram, shift_products = basis_products(tensors["basis"], adapter.gain, adapter.shift)
    return Context(**tensors, gram=gram, shift_products=shift_products)


class Evolving:
    """Update a float32 context class by class, and compare it with one computed in full."""

    def __init__(self, case: Case, first: int = 1) -> None:
        self.adapter = case.adapter().requires_grad_(False)
        self.double = copy.deepcopy(self.adapter).double()
        self.features, self.all = case.inputs()
        self.prototypes = self.all[:first]
        self.context = self.adapter.context(self.prototypes)

    def add(self, prototype: Tensor) -> None:
        self.prototypes = torch.cat([self.prototypes, prototype[None]])
        self.context = add_class(self.adapter, self.context, prototype)

    def remove(self, index: int) -> None:
        self.prototypes = torch.cat([self.prototypes[:index], self.prototypes[index + 1 :]])
        self.context = remove_class(self.adapter, self.context, index)

    def replace(self, index: int, prototype: Tensor) -> None:
        before, after = self.prototypes[:index], self.prototypes[index + 1 :]
        self.prototypes = torch.cat([before, prototype[None], after])
        self.context = replace_class(self.adapter, self.context, index, prototype)

    def error(self) -> float:
        """Return the largest difference from the scores of a context computed in full."""
        assert torch.equal(self.context.prototypes, self.prototypes)
        full = self.adapter.context(self.prototypes)
        return float((self._scores(self.context) - self._scores(full)).abs().max())

    def rounding_error(self) -> float:
        """Return how far the scores of a context computed in full are from those in float64."""
        full = self.adapter.context(self.prototypes)
        exact = self.double.context(self.prototypes.double())
        expected = self.double.scores(self.features.double(), exact)
        return float((self._scores(full) - expected).abs().max())

    def _scores(self, context: Context) -> Tensor:
        return self.double.scores(self.features.double(), to_double(self.double, context))


@pytest.mark.parametrize("config", [PROGRAM, AdapterConfig(heads=2)], ids=["one head", "two heads"])
def test_a_thousand_classes_added_one_by_one(config: AdapterConfig) -> None:
    evolving = Evolving(Case(config, classes=1001, scale=0.5))
    for prototype in evolving.all[1:]:
        evolving.add(prototype)
    assert len(evolving.context) == 1001
    assert evolving.error() <= 1e-5


@pytest.mark.parametrize("near_duplicates", [False, True], ids=["different", "near-duplicates"])
def test_most_of_a_thousand_classes_removed_one_by_one(near_duplicates: bool) -> None:
    """Rounding errors would grow a hundredfold from a thousand classes to ten."""
    case = Case(classes=1000, dim=32, scale=0.5, near_duplicates=near_duplicates)
    evolving = Evolving(case, first=1000)
    generator = Generator().manual_seed(0)
    errors = []
    while len(evolving.prototypes) > 10:
        evolving.remove(int(torch.randint(len(evolving.prototypes), (), generator=generator)))
        if len(evolving.prototypes) % 90 == 10:
            errors.append(evolving.error())
    assert max(errors) <= 1e-5


def test_a_thousand_replacements() -> None:
    evolving = Evolving(Case(classes=40, scale=0.5), first=40)
    generator = Generator().manual_seed(0)
    for _ in range(1000):
        index = int(torch.randint(40, (), generator=generator))
        noise = torch.randn(16, generator=generator)
        evolving.replace(index, evolving.all[index] * (1 + 0.2 * noise))
    assert evolving.error() <= 1e-5


@settings(max_examples=60, deadline=None)
@given(
    cases,
    st.lists(
        st.tuples(st.sampled_from(["add", "remove", "replace"]), st.integers(0, 10**6)), max_size=12
    ),
)
def test_any_changes_in_any_order(case: Case, changes: list[tuple[str, int]]) -> None:
    """Use float64, where nothing but a wrong formula makes a difference, whatever the norms."""
    adapter, features, initial = case.double()
    adapter.requires_grad_(False)
    prototypes = list(initial)
    context = adapter.context(initial)
    for step, (change, number) in enumerate(changes):
        new = initial[number % len(initial)] * (1 + 0.1 * math.sin(step))
        index = number % max(1, len(prototypes))
        if change == "add" or not prototypes:
            prototypes.append(new)
            context = add_class(adapter, context, new)
        elif change == "remove":
            del prototypes[index]
            context = remove_class(adapter, context, index)
        else:
            prototypes[index] = new
            context = replace_class(adapter, context, index, new)
    assert len(context) == len(prototypes)
    if prototypes:
        full = adapter.context(torch.stack(prototypes))
        expected = adapter.scores(features, full)
        torch.testing.assert_close(adapter.scores(features, context), expected, rtol=0, atol=1e-8)


def test_few_nodes_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect the new node for a replacement, and some ten for a removal, if attention is even."""
    evolving = Evolving(Case(classes=200, dim=8, scale=0.1), first=200)
    recomputed = []
    attend = evolving.adapter.attend

    def counting_attend(queries: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        recomputed.append(queries.shape[1])
        return attend(queries, *others)

    monkeypatch.setattr(evolving.adapter, "attend", counting_attend)
    for index in range(100):
        evolving.replace(index, evolving.all[index] * 1.1)
    assert recomputed == [1] * 100
    recomputed.clear()
    for _ in range(100):
        evolving.remove(50)
    assert 100 < sum(recomputed) < 20 * 100


def saturated(seed: int) -> tuple[Evolving, int]:
    """Return a context where some nodes attend to one class almost alone, and that class."""
    evolving = Evolving(Case(classes=20, scale=12.0, seed=seed), first=20)
    context = evolving.context
    logits = context.queries[0] @ evolving.prototypes.T
    attention = (logits - context.max_logits[0][:, None] - context.log_sums[0][:, None]).exp()
    saturated_nodes = (attention > 0.999).sum(0)
    dominant = int(saturated_nodes.argmax())
    assert int(saturated_nodes[dominant]) >= 3, "this case does not saturate attention"
    return evolving, dominant


def assert_as_good_as_full(evolving: Evolving) -> None:
    """Allow 1e-5, plus twice the error of a context computed in full, for large norms."""
    assert evolving.error() <= 1e-5 + 2 * evolving.rounding_error()


@pytest.mark.parametrize("seed", range(6))
def test_removing_a_dominant_class(seed: int) -> None:
    evolving, dominant = saturated(seed)
    evolving.remove(dominant)
    assert_as_good_as_full(evolving)


@pytest.mark.parametrize("seed", range(6))
def test_replacing_a_dominant_class(seed: int) -> None:
    evolving, dominant = saturated(seed)
    evolving.replace(dominant, evolving.prototypes[dominant] * 0.9)
    assert_as_good_as_full(evolving)


@pytest.mark.parametrize("seed", range(6))
def test_removing_two_near_duplicates_that_dominate(seed: int) -> None:
    """Remove one, which leaves all attention to the other, and then that one too."""
    evolving, dominant = saturated(seed)
    evolving.add(evolving.prototypes[dominant] * (1 - 1e-5))
    evolving.remove(dominant)
    assert_as_good_as_full(evolving)
    evolving.remove(len(evolving.prototypes) - 1)
    assert_as_good_as_full(evolving)


def test_a_context_may_become_empty_and_grow_again() -> None:
    evolving = Evolving(Case(classes=3))
    evolving.remove(0)
    assert len(evolving.context) == 0
    for prototype in evolving.all:
        evolving.add(prototype)
    assert evolving.error() <= 1e-5


def test_two_additions_to_one_context_are_independent() -> None:
    evolving = Evolving(Case(), first=4)
    adapter = evolving.adapter
    shared = add_class(adapter, evolving.context, evolving.all[4])
    first = add_class(adapter, shared, evolving.all[5])
    second = add_class(adapter, shared, evolving.all[6])
    for context, last in ((first, 5), (second, 6)):
        full = adapter.context(evolving.all[[0, 1, 2, 3, 4, last]])
        for name in CLASS_AXIS.keys() - {"max_logits", "log_sums", "retained"}:
            actual = getattr(context, name)
            torch.testing.assert_close(actual, getattr(full, name), rtol=1e-4, atol=1e-4)


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


def with_dropout(config: AdapterConfig, rate: float = 0.3) -> tuple[Adapter, Tensor, Tensor]:
    config = replace(config, attention_dropout=rate, output_dropout=rate)
    adapter, features, prototypes = Case(config).double()
    return adapter.train(), features, prototypes


@each_config
def test_a_rate_of_zero_drops_nothing(config: AdapterConfig) -> None:
    adapter, features, prototypes = with_dropout(config, rate=0.0)
    with torch.no_grad():
        trained = adapter(features, prototypes, Generator().manual_seed(0))
        assert torch.equal(trained, adapter.eval()(features, prototypes))


@each_config
def test_evaluation_drops_nothing(config: AdapterConfig) -> None:
    adapter, features, prototypes = with_dropout(config)
    with torch.no_grad():
        scores = adapter.eval()(features, prototypes)
        assert torch.equal(scores, adapter(features, prototypes, Generator().manual_seed(3)))
        expected = naive_scores(adapter, features, prototypes)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-10)


@each_config
def test_the_generator_decides_what_is_dropped(config: AdapterConfig) -> None:
    adapter, features, prototypes = with_dropout(config)
    before = torch.get_rng_state()
    with torch.no_grad():
        one, again, other = (
            adapter(features, prototypes, Generator().manual_seed(seed)) for seed in (0, 0, 1)
        )
    assert torch.equal(one, again)
    assert not torch.allclose(one, other, atol=1e-3)
    assert torch.equal(torch.get_rng_state(), before)


@each_config
def test_dropout_equals_the_graphs(config: AdapterConfig) -> None:
    """Compare scores and gradients, with one mask for the whole batch."""
    adapter, features, prototypes = with_dropout(config)
    generator = Generator().manual_seed(4)
    masks = DropoutMasks.sample(
        adapter.config, len(prototypes), adapter.dim, features.device, generator
    )
    scores = adapter(features, prototypes, Generator().manual_seed(4))
    expected_scores = naive_scores(adapter, features, prototypes, masks)
    torch.testing.assert_close(scores, expected_scores, rtol=0, atol=1e-10)
    leaves = list(adapter.parameters())
    gradients = torch.autograd.grad(scores.square().sum(), leaves)
    expected_gradients = torch.autograd.grad(expected_scores.square().sum(), leaves)
    for actual, expected in zip(gradients, expected_gradients, strict=True):
        tolerance = 1e-8 * float(expected.abs().max())
        torch.testing.assert_close(actual, expected, rtol=1e-8, atol=tolerance)


def test_masks_keep_the_mean() -> None:
    config = AdapterConfig(heads=4, attention_dropout=0.25, output_dropout=0.5)
    generator = Generator().manual_seed(0)
    masks = DropoutMasks.sample(config, 100, 64, torch.device("cpu"), generator)
    assert masks.attention.shape == (4, 100, 100)
    assert set(masks.attention.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert float(masks.attention.mean()) == pytest.approx(1, abs=0.02)
    assert masks.query_column.shape == (4, 100)
    assert masks.query_row.shape == (4, 101)
    assert masks.output.shape == (64,)
    assert set(masks.output.unique().tolist()) == {0.0, 2.0}


# Parameters and settings


@pytest.mark.parametrize(("dim", "count"), [(64, 16_576), (512, 1_050_112)])
def test_as_many_parameters_as_published(dim: int, count: int) -> None:
    assert sum(tensor.numel() for tensor in Adapter(dim).parameters()) == count


def test_weights_start_as_published() -> None:
    """Expect normal weights of variance 1/d, also by Xavier's rule, and an identity layer norm."""
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
    ("changed", "words"),
    [
        ({"heads": 0}, "heads .* 0"),
        ({"attention_dropout": 1.0}, "attention_dropout .* 1.0"),
        ({"output_dropout": -0.1}, "output_dropout .* -0.1"),
        ({"attention_dropout": float("nan")}, "attention_dropout .* nan"),
        ({"heads": -2, "output_dropout": 2.0}, "heads .* -2; output_dropout .* 2.0"),
    ],
)
def test_impossible_settings_are_refused_by_name(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AdapterConfig(**changed)
