"""Score queries against adapted prototypes without building a graph for each query.

`nn/adapter.py` has the paper's equations; this file has the algebra that makes them cheap. In the
graph of query x, the node of prototype j before the layer norm is

    z_j = r_j + Σ_h (1 − a_hj) G_hj + a_hj v_hx

    r_j  = w_j + b       the residual
    G_hj = F O_hj        what head h of node j attends to among the prototypes
    v_hx = F V x         the value of the query in head h
    a_hj = σ(e_hjx − L_hj)      the gate: the attention that prototype j gives to the query

The layer norm ignores the mean of a vector, so r, G and v are centred beforehand. Then with its
weight γ and bias β, and with the direction of the adapted query, y = T · LN(z_x) / ‖LN(z_x)‖,

    n_j²  = ‖z_j‖² + d ε
    dot   = ⟨z_j, γ⊙y⟩ / n_j + ⟨β, y⟩ / √d
    norm² = ‖γ⊙z_j‖² / n_j² + 2 ⟨γ⊙z_j, β⟩ / (√d n_j) + ‖β‖² / d
    score = dot / norm = T · cos(LN(z_j), LN(z_x))

and without a layer norm the score is ⟨z_j, y⟩ / ‖z_j‖. All of these are polynomials in the gates,
and their coefficients are inner products of r, G, v, y and β: a few matrix products of (N, d) with
(d, q). No tensor of shape (q, N, d) ever exists.

q: queries   N: classes   d: features   h: heads
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.nn.prototypes import GrowingBuffer
from fewmore.nn.similarity import TEMPERATURE

LAYER_NORM_EPS = 1e-5

CLASS_AXIS = {  # the fields of a context that have an axis of classes, and which axis that is
    "prototypes": 0,
    "queries": 1,
    "values": 1,
    "basis": 1,
    "max_logits": 1,
    "log_sums": 1,
    "retained": 1,
    "gram": 3,
    "shift_products": 1,
}


@dataclass(frozen=True)
class Context:
    """Hold all that scoring needs of the prototypes; computed once a session."""

    prototypes: Tensor  # (N, d) w, which are also the keys of the attention
    queries: Tensor  # (h, N, d) Sᵀ w, so that ⟨queries_j, w_k⟩ = e_jk
    values: Tensor  # (h, N, d) M w
    basis: Tensor  # (1 + h, N, d) the residual r, then the attention output G of each head
    # The log-sum-exp L_j is kept in two parts, because their sum would round the second one away
    # where logits are large.
    max_logits: Tensor  # (h, N) max_k e_jk
    log_sums: Tensor  # (h, N) log Σ_k exp(e_jk − max_k e_jk)
    # The share of the sum exp(L_j) that is left after classes were removed, since it was last
    # computed in full. Rounding errors grow as it shrinks.
    retained: Tensor  # (h, N)
    gram: Tensor  # (1 or 2, 1 + h, 1 + h, N) products of the basis; the same weighted by γ²
    shift_products: Tensor | None  # (1 + h, N) 2 ⟨γ⊙basis, β⟩ / √d
    similarity_map: Tensor  # (h, d, d) S
    value_map: Tensor  # (h, d, d) M
    # Where prototypes, queries and values lie once classes were added, with space for more.
    buffers: tuple[GrowingBuffer, ...] = ()

    def __len__(self) -> int:
        return len(self.prototypes)

    def per_class(self, index: slice | list[int] | Tensor) -> dict[str, Any]:
        """Return the fields that have an axis of classes, indexed along it."""
        fields = {name: getattr(self, name) for name in CLASS_AXIS}
        return {
            name: None if field is None else field[(slice(None),) * CLASS_AXIS[name] + (index,)]
            for name, field in fields.items()
        }

    def tile(self, classes: slice) -> "Context":
        """Restrict to some of the classes, as far as scoring against them goes."""
        if (classes.start, classes.stop) == (0, len(self)):
            return self
        return replace(self, **self.per_class(classes), buffers=())


@dataclass(frozen=True)
class QueryTerms:
    """Hold what scoring needs of a batch of queries, whatever the class."""

    features: Tensor  # (q, d) x
    # γ⊙y, then the values v of the heads and, with a layer norm, γ²⊙v. All are multiplied with
    # the basis of the classes in one matrix product.
    vectors: Tensor  # (1 + h or 1 + 2h, q, d)
    value_products: Tensor  # (h, q) ⟨v, γ⊙y⟩
    value_gram: Tensor  # (1 or 2, h, h, q) products of the values; the same weighted by γ²
    shift_products: Tensor | None = None  # (h, q) 2 ⟨γ⊙v, β⟩ / √d
    direction_shift: Tensor | None = None  # (q, 1) ⟨y, β⟩ / √d


def basis_products(
    basis: Tensor, gain: Tensor | None, shift: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Compute a context's `gram` and `shift_products` from its basis (1 + h, N, d)."""
    if gain is None or shift is None:
        return _gram(basis, lambda products: products.sum(-1)[None]), None
    dim = basis.shape[-1]
    weights = gain.square()
    gram = _gram(basis, lambda products: torch.stack([products.sum(-1), products @ weights]))
    gram[0, 0, 0] += dim * LAYER_NORM_EPS  # so that ‖z‖² comes out as n²
    return gram, basis @ (2 / math.sqrt(dim) * gain * shift)


def query_terms(
    features: Tensor, values: Tensor, adapted: Tensor, gain: Tensor | None, shift: Tensor | None
) -> QueryTerms:
    """Compute the query's side, from x (q, d), its values v (h, q, d) and LN(z_x) (q, d)."""
    direction = TEMPERATURE * F.normalize(adapted, dim=1)
    if gain is None or shift is None:
        return QueryTerms(
            features,
            vectors=torch.cat([direction[None], values]),
            value_products=inner(direction, values),
            value_gram=_value_gram(values)[None],
        )
    shift = shift / math.sqrt(features.shape[-1])
    weighted_values = values * gain
    weighted_direction = direction * gain
    return QueryTerms(
        features,
        vectors=torch.cat([weighted_direction[None], values, weighted_values * gain]),
        value_gram=torch.stack([_value_gram(values), _value_gram(weighted_values)]),
        value_products=inner(weighted_direction, values),
        shift_products=2 * (weighted_values @ shift),
        direction_shift=(direction @ shift)[:, None],
    )


def cosines(
    queries: QueryTerms, context: Context, shift: Tensor | None, gate_mask: Tensor | None = None
) -> Tensor:
    """Return T · cos(LN(z_j), LN(z_x)): (q, N). `gate_mask` (h, N) is dropout on the gates."""
    excess = (  # e_jx − L_j
        queries.features @ context.queries.transpose(1, 2)
        - context.max_logits[:, None]
        - context.log_sums[:, None]
    )
    rest = torch.sigmoid(-excess)  # 1 − a_j, without the cancellation of a subtraction
    gate = torch.sigmoid(excess)  # (h, q, N) a_j
    if gate_mask is not None:
        gate = gate * gate_mask[:, None]

    # Products of the queries' vectors with each vector of the basis, and of those the one with
    # γ⊙y apart from the ones with the values.
    products = [
        (queries.vectors.flatten(0, 1) @ vectors.T).unflatten(0, queries.vectors.shape[:2])
        for vectors in context.basis
    ]
    along, cross = zip(*(torch.split(p, [1, len(p) - 1]) for p in products), strict=True)
    dot = _linear(rest, gate, [p.squeeze(0) for p in along], queries.value_products)
    weightings = len(context.gram)
    squares = _squared_norms(
        rest,
        gate,
        context.gram,
        [p.unflatten(0, (weightings, -1)) for p in cross],
        queries.value_gram,
    ).unbind()
    inverse = _inverse_root(squares[0])  # 1 / n_j
    if (
        shift is None
        or context.shift_products is None
        or queries.shift_products is None
        or queries.direction_shift is None
    ):
        return dot * inverse
    along_shift = _linear(rest, gate, context.shift_products, queries.shift_products)
    squared_norm = torch.addcmul(
        shift.square().mean(), torch.addcmul(along_shift, squares[1], inverse), inverse
    )
    return torch.addcmul(queries.direction_shift, dot, inverse) * _inverse_root(squared_norm)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return inner products over the last axis."""
    return (a * b).sum(-1)


def _linear(
    rest: Tensor, gate: Tensor, of_basis: Sequence[Tensor] | Tensor, of_values: Tensor
) -> Tensor:
    """Evaluate a linear function of z (q, N), given its values on the basis and on v.

    It is f(r) + Σ_h (1 − a_h) f(G_h) + a_h f(v_h). `of_basis` is (1 + h, q or 1, N) and
    `of_values` (h, q).
    """
    value, *of_outputs = of_basis
    for rest_h, gate_h, of_output, of_value in zip(
        rest, gate, of_outputs, of_values[:, :, None], strict=True
    ):
        value = torch.addcmul(torch.addcmul(value, rest_h, of_output), gate_h, of_value)
    return value


def _squared_norms(
    rest: Tensor, gate: Tensor, gram: Tensor, cross: Sequence[Tensor], value_gram: Tensor
) -> Tensor:
    """Return ‖z‖² and, with a layer norm, also ‖γ⊙z‖²: (1 or 2, q, N).

    With c = 1 − a, the squared norm of r + Σ_h c_h G_h + a_h v_h is

        ⟨r, r⟩ + 2 Σ_h c_h (⟨r, G_h⟩ + Σ_i ½ c_i ⟨G_h, G_i⟩ + a_i ⟨G_h, v_i⟩)
               + 2 Σ_h a_h (⟨r, v_h⟩ + Σ_i ½ a_i ⟨v_h, v_i⟩)

    `gram` has the products of the basis with itself (1 or 2, 1 + h, 1 + h, N), `cross` those of
    each vector of the basis with v (1 + h times 1 or 2, h, q, N), and `value_gram` those of v with
    itself (1 or 2, h, h, q).
    """
    # Unbound all at once: then autograd also stacks the gradients all at once.
    size = gram.shape[1]
    heads = len(gate)
    basis_pairs = gram[:, None].flatten(2, 3).unbind(2)
    cross_pairs = [of_vector.unbind(1) for of_vector in cross]
    value_pairs = value_gram[..., None].flatten(1, 2).unbind(1)
    total = basis_pairs[0]
    for h, (rest_h, gate_h) in enumerate(zip(rest, gate, strict=True)):
        by_rest = basis_pairs[1 + h]
        by_gate = cross_pairs[0][h]
        for i, (rest_i, gate_i) in enumerate(zip(rest, gate, strict=True)):
            outputs = basis_pairs[(1 + h) * size + 1 + i]
            by_rest = torch.addcmul(by_rest, rest_i, outputs, value=0.5)
            by_rest = torch.addcmul(by_rest, gate_i, cross_pairs[1 + h][i])
            by_gate = torch.addcmul(by_gate, gate_i, value_pairs[h * heads + i], value=0.5)
        total = torch.addcmul(total, rest_h, by_rest, value=2)
        total = torch.addcmul(total, gate_h, by_gate, value=2)
    return total


def _gram(basis: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the inner products of each class's basis: (1 or 2, 1 + h, 1 + h, N).

    `reduce` sums elementwise products (N, d) over d, in one or two weightings.
    """
    vectors = basis.unbind()
    indices = range(len(vectors))
    upper = {(i, j): reduce(vectors[i] * vectors[j]) for i in indices for j in indices if i <= j}
    rows = [torch.stack([upper[min(i, j), max(i, j)] for j in indices], 1) for i in indices]
    return torch.stack(rows, 1)


def _value_gram(values: Tensor) -> Tensor:
    """Return the inner products of a query's values in all pairs of heads: (h, h, q)."""
    return torch.stack([inner(of_head, values) for of_head in values])


def _inverse_root(value: Tensor) -> Tensor:
    return value.clamp(min=torch.finfo(value.dtype).tiny).rsqrt()
