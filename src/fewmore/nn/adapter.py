"""Adapt prototypes by graph attention: the classifier adaptation module, equations 2 to 5.

The nodes of the graph are the prototypes w_1 … w_N and, following FEAT, the query x as node N + 1.
With projections Q (the paper's φ), K (θ) and V (U), output map F with bias b, and s = 1/√d, the
nodes attend to one another as in a transformer block:

    e_jk = s ⟨Q w_j, K w_k⟩                  attention logits                          equation 2
    a_jk = exp(e_jk − L_j)                   softmax; L_j = logsumexp_k e_jk           equation 3
    z_j  = w_j + b + Σ_k a_jk F V w_k        residual, and attention output F O_j      equation 4
    score = T · cos(LN(z_j), LN(z_x))        the adapted classifier, T = 16            equation 5

Taken literally, every query needs a graph of its own. But a query adds only one column to the
attention matrix of the prototypes, and one row for itself. So with L_j and O_j computed over the
prototypes alone, once a session, the node of prototype j in the graph of query x is exactly

    a_j  = σ(e_jx − L_j)                     the gate: attention of prototype j to the query
    z_j  = w_j + b + (1 − a_j) F O_j + a_j F V x

In the code Q, K and V, F appear as two products: S = s QᵀK, with e_jk = ⟨w_j, S w_k⟩, and M = F V.
With several heads there is one gate, one S and one M per head. `Adapter.attend` has equations 2 to
4 for the prototypes, `Adapter._query_node` for the query. `nn/closed_form.py` turns gates into
scores, and `nn/adapter_updates.py` adds, removes and replaces single classes.

q: queries   N: classes   d: features   h: heads
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.errors import ConfigError
from fewmore.nn.closed_form import (
    LAYER_NORM_EPS,
    Context,
    QueryTerms,
    basis_products,
    cosines,
    inner,
    query_terms,
)
from fewmore.nn.similarity import TEMPERATURE

# Numbers in memory at a time: of attention between prototypes, and of an intermediate result of
# scoring. A cache holds that much, or it keeps a GPU busy.
ATTENTION_BLOCK = {"cpu": 2**19, "cuda": 2**25}
SCORE_TILE = {"cpu": 2**17, "cuda": 2**25}
OTHER_DEVICE = 2**24
MIN_QUERIES = 128  # in a tile of scores, however many classes: matrix products need the size
MIN_CLASSES = 64


@dataclass(frozen=True)
class AdapterConfig:
    """Choose the parts of the module. The defaults are those of the authors' program."""

    heads: int = 1  # of the attention
    # The program declares dropout of 0.1 and 0.5 but never leaves evaluation mode.
    attention_dropout: float = 0.0
    output_dropout: float = 0.0  # of the adapted prototypes
    query_node: bool = True  # the query image is a node of the graph
    scaling: bool = True  # of the attention logits, by 1/√d
    output_map: bool = True  # a linear map behind the attention
    layer_norm: bool = True  # behind the sum with what was adapted

    def __post_init__(self) -> None:
        problems = [] if self.heads >= 1 else [f"heads must be at least 1, not {self.heads}"]
        for name in ("attention_dropout", "output_dropout"):
            if not 0 <= getattr(self, name) < 1:
                problems.append(f"{name} must lie in [0, 1), not {getattr(self, name)}")
        if problems:
            raise ConfigError("adapter: " + "; ".join(problems))

    @classmethod
    def equations(cls) -> "AdapterConfig":
        """Return equations 2 to 5 to the letter, without what the paper calls useful practices."""
        return cls(query_node=False, scaling=False, output_map=False, layer_norm=False)


@dataclass(frozen=True)
class DropoutMasks:
    """Hold dropout masks for a batch. A mask for each query would need a graph for each query."""

    attention: Tensor  # (h, N, N) of the prototypes' attention to one another
    query_column: Tensor  # (h, N) of the prototypes' attention to the query: the gates
    query_row: Tensor  # (h, N + 1) of the query's attention to the prototypes and to itself
    output: Tensor  # (d,) of what the output map returns

    @classmethod
    def sample(
        cls,
        config: AdapterConfig,
        classes: int,
        dim: int,
        device: torch.device,
        generator: Generator | None,
    ) -> "DropoutMasks":
        """Draw masks that are 0 or 1 / (1 − rate)."""

        def mask(rate: float, *shape: int) -> Tensor:
            kept = torch.rand(shape, device=device, generator=generator) >= rate
            return kept.float() / (1 - rate)

        return cls(
            attention=mask(config.attention_dropout, config.heads, classes, classes),
            query_column=mask(config.attention_dropout, config.heads, classes),
            query_row=mask(config.attention_dropout, config.heads, classes + 1),
            output=mask(config.output_dropout, dim),
        )


class Adapter(nn.Module):
    """Adapt prototypes to one another and to the query, and score the query against them."""

    def __init__(
        self, dim: int, config: AdapterConfig | None = None, generator: Generator | None = None
    ) -> None:
        super().__init__()
        self.dim = dim
        self.config = config = config or AdapterConfig()
        heads = config.heads

        def weights(std: float) -> nn.Parameter:
            return nn.Parameter(torch.empty(heads, dim, dim).normal_(0, std, generator=generator))

        def bias() -> nn.Parameter:
            uniform = torch.empty(dim).uniform_(-1, 1, generator=generator)
            return nn.Parameter(uniform / math.sqrt(heads * dim))

        init_std = math.sqrt(2 / (2 * dim))
        self.queries = weights(init_std)
        self.keys = weights(init_std)
        self.values = weights(init_std)
        xavier_std = math.sqrt(2 / (heads * dim + dim))
        self.output = weights(xavier_std) if config.output_map else None
        self.bias = bias() if config.output_map else None
        # The weight γ and the bias β of the layer norm.
        self.gain = nn.Parameter(torch.ones(dim)) if config.layer_norm else None
        self.shift = nn.Parameter(torch.zeros(dim)) if config.layer_norm else None

    def forward(
        self, features: Tensor, prototypes: Tensor, generator: Generator | None = None
    ) -> Tensor:
        """Score features (q, d) against adapted prototypes (N, d): (q, N).

        The scores are differentiable. In training mode the generator decides what dropout drops.
        """
        masks = None
        config = self.config
        if self.training and (config.attention_dropout > 0 or config.output_dropout > 0):
            masks = DropoutMasks.sample(
                config, len(prototypes), self.dim, features.device, generator
            )
        return self.scores(features, self.context(prototypes, masks), masks)

    # Once a session: attention among the prototypes

    def context(self, prototypes: Tensor, masks: DropoutMasks | None = None) -> Context:
        """Compute equations 2 to 4 over the prototypes alone."""
        similarity_map = self.similarity_map()
        value_map = self.value_map(masks)
        queries = prototypes @ similarity_map
        values = prototypes @ value_map.transpose(1, 2)
        max_logits, log_sums, outputs = self.attend(
            queries, prototypes, values, None if masks is None else masks.attention
        )
        basis = torch.cat([self.residual(prototypes, masks)[None], outputs])
        gram, shift_products = basis_products(basis, self.gain, self.shift)
        return Context(
            prototypes=prototypes,
            queries=queries,
            values=values,
            basis=basis,
            max_logits=max_logits,
            log_sums=log_sums,
            retained=torch.ones_like(log_sums),
            gram=gram,
            shift_products=shift_products,
            similarity_map=similarity_map,
            value_map=value_map,
        )

    def similarity_map(self) -> Tensor:
        """Return S = s QᵀK, so that e_jk = ⟨w_j, S w_k⟩: (h, d, d)."""
        scale = 1 / math.sqrt(self.dim) if self.config.scaling else 1.0
        return scale * _matmul_in_double(self.queries.transpose(1, 2), self.keys)

    def value_map(self, masks: DropoutMasks | None = None) -> Tensor:
        """Return M = F V, centred where a layer norm follows: (h, d, d)."""
        if self.output is None:
            value_map = self.values / self.config.heads
        else:
            value_map = _matmul_in_double(self.output, self.values)
        if masks is not None:
            value_map = masks.output[:, None] * value_map
        return self._centered(value_map.transpose(1, 2)).transpose(1, 2)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute attention from nodes (h, n, d) to keys (N, d) and values (h, N, d), in blocks.

        Returns max_k e_jk and L_j − max_k e_jk, both (h, n), and F O_j (h, n, d).
        """
        step = _block_size(keys)
        max_logits, log_sums, outputs = [], [], []
        for first in range(0, queries.shape[1], step):
            logits = queries[:, first : first + step] @ keys.T  # equation 2
            largest = logits.amax(-1, keepdim=True).detach()
            attention = (logits - largest).exp()  # equation 3, but for the sum
            total = attention.sum(-1, keepdim=True)
            if mask is not None:
                attention = attention * mask[:, first : first + step]
            outputs.append(attention @ values / total)  # equation 4, the sum over k
            max_logits.append(largest.squeeze(2))
            log_sums.append(total.log().squeeze(2))
        return torch.cat(max_logits, 1), torch.cat(log_sums, 1), torch.cat(outputs, 1)

    def residual(self, nodes: Tensor, masks: DropoutMasks | None = None) -> Tensor:
        """Return w + b, the part of equation 4 outside the sum, centred for the layer norm."""
        return self._centered(self._with_bias(nodes, masks))

    def adapted_prototypes(self, context: Context) -> Tensor:
        """Return equation 5: the prototypes after adaptation to one another alone, (N, d)."""
        return self.layer_norm(context.basis.sum(0))  # the sum is that of equation 4

    # For each batch of queries

    def scores(
        self,
        features: Tensor,
        context: Context,
        masks: DropoutMasks | None = None,
        *,
        tiled: bool = True,
    ) -> Tensor:
        """Return T times the cosine of adapted query and adapted prototypes: (q, N).

        With `tiled=False` all is computed at once, without loops: for tracing.
        """
        if not self.config.query_node:
            unit_queries = F.normalize(self.layer_norm(features), dim=1)
            unit_prototypes = F.normalize(self.adapted_prototypes(context), dim=1)
            return TEMPERATURE * unit_queries @ unit_prototypes.T
        if not tiled:
            column = None if masks is None else masks.query_column
            return cosines(self._query_terms(features, context, masks), context, self.shift, column)

        size = SCORE_TILE.get(features.device.type, OTHER_DEVICE)
        scores = []
        for batch in torch.split(features, max(MIN_QUERIES, size // max(1, len(context)))):
            terms = self._query_terms(batch, context, masks)
            step = max(MIN_CLASSES, size // max(1, len(batch)))
            tiles = []
            for first in range(0, len(context), step):
                classes = slice(first, min(first + step, len(context)))
                column = None if masks is None else masks.query_column[:, classes]
                tiles.append(cosines(terms, context.tile(classes), self.shift, column))
            scores.append(_concatenate(tiles, 1))
        return _concatenate(scores, 0)

    def layer_norm(self, nodes: Tensor) -> Tensor:
        """Apply the layer norm, if there is one, to nodes (…, d)."""
        if not self.config.layer_norm:
            return nodes
        return F.layer_norm(nodes, (self.dim,), self.gain, self.shift, LAYER_NORM_EPS)

    def _query_terms(
        self, features: Tensor, context: Context, masks: DropoutMasks | None
    ) -> QueryTerms:
        values = features @ context.value_map.transpose(1, 2)  # (h, q, d) F V x
        adapted = self.layer_norm(self._query_node(features, values, context, masks))
        return query_terms(features, values, adapted, self.gain, self.shift)

    def _query_node(
        self, features: Tensor, values: Tensor, context: Context, masks: DropoutMasks | None
    ) -> Tensor:
        """Compute z_x, the query's node before the layer norm, by equations 2 to 4: (q, d)."""
        queries = features @ context.similarity_map
        to_prototypes = queries @ context.prototypes.T
        to_itself = inner(features, queries)[:, :, None]
        attention = torch.cat([to_prototypes, to_itself], 2).softmax(2)
        if masks is not None:
            attention = attention * masks.query_row[:, None]
        to_prototypes, to_itself = torch.split(attention, [attention.shape[2] - 1, 1], 2)
        outputs = to_prototypes @ context.values + to_itself * values
        return self._with_bias(features, masks) + outputs.sum(0)

    # Parts of both

    def _with_bias(self, nodes: Tensor, masks: DropoutMasks | None = None) -> Tensor:
        if self.bias is None:
            return nodes
        return nodes + (self.bias if masks is None else self.bias * masks.output)

    def _centered(self, vectors: Tensor) -> Tensor:
        """Subtract the mean, which a layer norm ignores: squares stay small, and round less."""
        return vectors - vectors.mean(-1, keepdim=True) if self.config.layer_norm else vectors


def _block_size(keys: Tensor) -> int:
    """Return how many nodes attend to the keys at a time."""
    numbers = ATTENTION_BLOCK.get(keys.device.type, OTHER_DEVICE)
    return max(16, numbers // max(1, len(keys)))


def _matmul_in_double(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two maps into one, rounding once."""
    return (a.double() @ b.double()).to(a.dtype)


def _concatenate(parts: list[Tensor], axis: int) -> Tensor:
    """Concatenate, without a copy where there is a single part."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)
