"""The classifier adaptation module: graph attention over prototypes and query, equations 2 to 5 of the paper.

Every query joins the graph of the N prototypes as one more node. Built as it reads, that is a graph of N + 1 nodes for each
query. But a query adds one column to each row of the attention and one row of its own, and what the prototypes give each other
does not change with it. So with e = similarity, softmaxed over the nodes,

    L_j = logsumexp_k e_jk          G_j = Σ_k softmax_k(e_jk) M w_k       over the prototypes alone, once a session
    a_j = σ(e_jx − L_j)             what node j gives to the query x
    z_j = w_j + b + (1 − a_j) G_j + a_j M x          node j in the query's graph, before the layer norm

and score = 16 · cos(LN(z_j), LN(z_x)). z_j lies in the span of three vectors, so its mean, its norm and its product with
LN(z_x) are polynomials in a_j whose coefficients are inner products: a few matrix products of (N, d) with (d, queries), and
nothing of size (queries, N, d) ever exists. With several heads there is one gate a_j, one G_j and one M a head.

q: queries   N: classes   d: features   h: heads
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.errors import ConfigError
from fewmore.nn.prototypes import GrowingBuffer
from fewmore.nn.similarity import TEMPERATURE

BLOCK = {"cpu": 2**19, "cuda": 2**25}  # numbers of attention between prototypes in memory at a time
TILE = {
    "cpu": 2**17,
    "cuda": 2**25,
}  # numbers of an intermediate result of scoring: what a cache or a GPU likes
QUERIES, CLASSES = 128, 64  # at least so many at a time: matrix products want it
EPSILON = 1e-5  # of the layer norm
WORTH_KEEPING = 0.9  # a node of whose sum removals have left less than this is computed anew: the rest would round too coarsely


@dataclass(frozen=True)
class AdapterConfig:
    """The switches. The defaults are the authors' program; equations 2 to 5 alone are `AdapterConfig.equations()`."""

    heads: int = 1
    attention_dropout: float = 0.0  # the program has 0.1 and 0.5 here, and never turns them on
    output_dropout: float = 0.0
    query_node: bool = True
    scaling: bool = True  # by 1/√d
    output_map: bool = True
    layer_norm: bool = True

    def __post_init__(self) -> None:
        wrong = [] if self.heads >= 1 else [f"heads must be at least 1, not {self.heads}"]
        for name in ("attention_dropout", "output_dropout"):
            if not 0 <= getattr(self, name) < 1:
                wrong.append(f"{name} must lie in [0, 1), not {getattr(self, name)}")
        if wrong:
            raise ConfigError("adapter: " + "; ".join(wrong))

    @classmethod
    def equations(cls) -> "AdapterConfig":
        """The paper's equations to the letter, without what it calls useful practices."""
        return cls(query_node=False, scaling=False, output_map=False, layer_norm=False)


@dataclass(frozen=True)
class Context:
    """What the prototypes give each other: all that scoring needs, computed once a session."""

    rows: Tensor  # (N, d) the prototypes w
    asking: Tensor  # (h, N, d) with ⟨asking_j, w_k⟩ = e_jk
    messages: Tensor  # (h, N, d) M w
    basis: Tensor  # (1 + h, N, d) w + b, centred, and the G of each head
    largest: Tensor  # (h, N) max_k e_jk
    log_rest: Tensor  # (h, N) L minus that: kept apart, because L alone would round away what matters when e is large
    left: Tensor  # (h, N) the sum exp L, as a share of the largest it was since it was computed anew: roundings grow as it shrinks
    gram: Tensor  # (1 or 2, 1 + h, 1 + h, N) products of a class's basis vectors; the same weighted by the layer norm's gain squared
    along_shift: Tensor | None  # (1 + h, N) twice their products with gain · shift / √d
    similar: Tensor  # (h, d, d) S
    message: Tensor  # (h, d, d) M, centred where a layer norm follows
    room: tuple[
        GrowingBuffer, ...
    ] = ()  # where rows, asking and messages lie, once classes were added

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, classes: slice) -> "Context":
        """Some of the classes, as far as scoring against them goes."""
        if (classes.start, classes.stop) == (0, len(self)):
            return self
        named = {
            name: getattr(self, name)[..., classes, :]
            for name in ("rows", "asking", "messages", "basis")
        }
        named |= {
            name: getattr(self, name)[..., classes]
            for name in ("largest", "log_rest", "left", "gram")
        }
        return replace(
            self,
            along_shift=None if self.along_shift is None else self.along_shift[:, classes],
            room=(),
            **named,
        )


class Adapter(nn.Module):
    """Adapts all prototypes to one another and to the query, and scores the query against them."""

    def __init__(
        self, dim: int, config: AdapterConfig | None = None, generator: Generator | None = None
    ) -> None:
        super().__init__()
        self.dim = dim
        self.config = config or AdapterConfig()
        heads = self.config.heads
        spread = math.sqrt(2 / (2 * dim))
        self.queries, self.keys, self.values = (
            nn.Parameter(torch.empty(heads, dim, dim).normal_(0, spread, generator=generator))
            for _ in range(3)
        )
        self.output: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if self.config.output_map:
            xavier = math.sqrt(2 / (heads * dim + dim))
            self.output = nn.Parameter(
                torch.empty(heads, dim, dim).normal_(0, xavier, generator=generator)
            )
            self.bias = nn.Parameter(
                torch.empty(dim).uniform_(-1, 1, generator=generator) / math.sqrt(heads * dim)
            )
        self.gain = nn.Parameter(torch.ones(dim)) if self.config.layer_norm else None
        self.shift = nn.Parameter(torch.zeros(dim)) if self.config.layer_norm else None

    def forward(
        self, features: Tensor, prototypes: Tensor, generator: Generator | None = None
    ) -> Tensor:
        """Scores of features (q, d) against adapted prototypes (N, d): (q, N). Differentiable; drops out in training."""
        drops = self.training and (
            self.config.attention_dropout > 0 or self.config.output_dropout > 0
        )
        drop = _Dropout(self, features.device, len(prototypes), generator) if drops else None
        return self.scores(features, self.context(prototypes, drop), drop)

    # The two linear maps that the attention is made of

    def similarity_map(self) -> Tensor:
        """S with e_jk = ⟨w_j, S w_k⟩, equation 2: (h, d, d)."""
        scale = 1 / math.sqrt(self.dim) if self.config.scaling else 1.0
        return scale * _exactly(self.queries.transpose(1, 2), self.keys)

    def message_map(self, drop: "_Dropout | None" = None) -> Tensor:
        """M, from a node to what it tells the others: the U of equation 4, and the output map behind it. (h, d, d)."""
        message = (
            self.values / self.config.heads
            if self.output is None
            else _exactly(self.output, self.values)
        )
        if drop is not None:
            message = drop.output[:, None] * message
        return self._centred(message.transpose(1, 2)).transpose(1, 2)

    # Once a session

    def context(self, prototypes: Tensor, drop: "_Dropout | None" = None) -> Context:
        """Equations 2 to 4 over the prototypes alone."""
        similar, message = self.similarity_map(), self.message_map(drop)
        asking = prototypes @ similar
        messages = prototypes @ message.transpose(1, 2)
        largest, log_rest, given = self._attention(asking, prototypes, messages, drop)
        basis = torch.cat([self._centred(self._with_bias(prototypes, drop))[None], given])
        left = torch.ones_like(log_rest)
        return self._completed(
            prototypes, asking, messages, basis, largest, log_rest, left, similar, message
        )

    def adapted(self, context: Context) -> Tensor:
        """The classifier's weights after adaptation to one another, without a query: (N, d). Equation 5."""
        return self.normed(context.basis.sum(0))

    @torch.no_grad()
    def add(self, context: Context, row: Tensor) -> Context:
        """The context with one more class, in O(Nd + d²)."""
        heads, last = self.config.heads, len(context)
        asks, tells = row @ context.similar, context.message @ row
        to_new = context.asking @ row  # (h, N): e_jn
        share = torch.sigmoid(to_new - context.largest - context.log_rest)
        largest = torch.maximum(context.largest, to_new)
        log_rest = torch.logaddexp(context.log_rest + (context.largest - largest), to_new - largest)
        left = (context.left / (1 - share)).clamp(max=1)
        before = context.room or map(
            GrowingBuffer, (context.rows, context.asking, context.messages)
        )
        room = tuple(
            own.grown(new)
            for own, new in zip(before, (row[None], asks[:, None], tells[:, None]), strict=True)
        )
        rows, asking, messages = (own.filled for own in room)
        new_largest, new_rest, new_given = self._attention(asks[:, None], rows, messages)
        largest, log_rest = torch.cat([largest, new_largest], 1), torch.cat([log_rest, new_rest], 1)
        left = torch.cat([left, torch.ones_like(new_rest)], 1)
        basis = context.basis.new_empty(1 + heads, last + 1, self.dim)
        basis[0, :last], basis[0, last] = context.basis[0], self._centred(self._with_bias(row))
        torch.lerp(context.basis[1:], tells[:, None], share[:, :, None], out=basis[1:, :last])
        basis[1:, last:] = new_given
        made = self._completed(
            rows, asking, messages, basis, largest, log_rest, left, context.similar, context.message
        )
        return replace(made, room=room)

    def remove(self, context: Context, index: int) -> Context:
        """The context without a class, in O(Nd + d²) on average: a node that has lost a good part of its sum is computed anew."""
        kept = torch.arange(len(context), device=context.rows.device) != index
        rows, asking, messages = (
            context.rows[kept],
            context.asking[:, kept],
            context.messages[:, kept],
        )
        largest, log_rest, given = (
            context.largest[:, kept],
            context.log_rest[:, kept],
            context.basis[1:, kept],
        )
        share = (asking @ context.rows[index] - largest - log_rest).exp()
        left = context.left[:, kept] * (1 - share)
        share = share.clamp(max=1 - WORTH_KEEPING)
        given = (given - share[:, :, None] * context.messages[:, index, None]) / (
            1 - share[:, :, None]
        )
        log_rest = log_rest + torch.log1p(-share)
        lost = (left < WORTH_KEEPING).any(0)
        if lost.any():
            largest[:, lost], log_rest[:, lost], given[:, lost] = self._attention(
                asking[:, lost], rows, messages
            )
            left[:, lost] = 1.0
        basis = torch.cat([context.basis[:1, kept], given])
        return self._completed(
            rows, asking, messages, basis, largest, log_rest, left, context.similar, context.message
        )

    def replace(self, context: Context, index: int, row: Tensor) -> Context:
        """The context with another prototype in a class's place, as when more images refine it."""
        moved = self.add(self.remove(context, index), row)
        order = [*range(index), len(context) - 1, *range(index, len(context) - 1)]
        asking, messages, basis = (
            moved.asking[:, order],
            moved.messages[:, order],
            moved.basis[:, order],
        )
        largest, log_rest, left = (
            moved.largest[:, order],
            moved.log_rest[:, order],
            moved.left[:, order],
        )
        return self._completed(
            moved.rows[order],
            asking,
            messages,
            basis,
            largest,
            log_rest,
            left,
            context.similar,
            context.message,
        )

    def _attention(
        self, asking: Tensor, rows: Tensor, messages: Tensor, drop: "_Dropout | None" = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What nodes hear from the rows: both parts of L (h, nodes), and G (h, nodes, d)."""
        step = _at_once(rows)
        largest, log_rest, given = [], [], []
        for first in range(0, asking.shape[1], step):
            attention, top, total = _exponentials(asking[:, first : first + step] @ rows.T)
            if drop is not None:
                attention = attention * drop.among[:, first : first + step]
            given.append(attention @ messages / total)
            largest.append(top.squeeze(2))
            log_rest.append(total.log().squeeze(2))
        return torch.cat(largest, 1), torch.cat(log_rest, 1), torch.cat(given, 1)

    def _completed(
        self,
        rows: Tensor,
        asking: Tensor,
        messages: Tensor,
        basis: Tensor,
        largest: Tensor,
        log_rest: Tensor,
        left: Tensor,
        similar: Tensor,
        message: Tensor,
    ) -> Context:
        """A context with the inner products that depend on the classes alone."""
        along = None
        if self.gain is None or self.shift is None:
            gram = _gram(basis, lambda products: products.sum(-1)[None])
        else:
            weights = self.gain.square()
            gram = _gram(
                basis, lambda products: torch.stack([products.sum(-1), products @ weights])
            )
            gram[0, 0, 0] += self.dim * EPSILON  # where the layer norm adds it
            along = basis @ (2 / math.sqrt(self.dim) * self.gain * self.shift)
        return Context(
            rows, asking, messages, basis, largest, log_rest, left, gram, along, similar, message
        )

    # For each batch of queries

    def scores(self, features: Tensor, context: Context, drop: "_Dropout | None" = None) -> Tensor:
        """16 times the cosine of the adapted query and the adapted prototypes, (q, N)."""
        if not self.config.query_node:
            query = self.normed(features)
            return (
                TEMPERATURE
                * F.normalize(query, dim=1)
                @ F.normalize(self.adapted(context), dim=1).T
            )
        numbers = TILE.get(features.device.type, 2**24)
        found = []
        for part in torch.split(features, max(QUERIES, numbers // max(1, len(context)))):
            queries = self._queries(part, context, drop)
            step = max(CLASSES, numbers // max(1, len(part)))
            tiles = [
                slice(first, min(first + step, len(context)))
                for first in range(0, len(context), step)
            ]
            found.append(
                _joined(
                    [self._cosines(queries, context.part(tile), drop, tile) for tile in tiles], 1
                )
            )
        return _joined(found, 0)

    def scores_at_once(self, x: Tensor, context: Context) -> Tensor:
        """The same in one tile: a computation without loops."""
        return self._cosines(self._queries(x, context, None), context)

    def _queries(self, x: Tensor, context: Context, drop: "_Dropout | None") -> "_Queries":
        """What scoring needs of queries, whatever the class."""
        told = x @ context.message.transpose(1, 2)  # (h, q, d): what a query tells
        aim = TEMPERATURE * F.normalize(
            self.normed(self._query_node(x, told, context, drop)), dim=1
        )
        if self.gain is None or self.shift is None:
            return _Queries(
                x, torch.cat([aim[None], told]), _products(aim, told), _pairs(told)[None]
            )
        shift = self.shift / math.sqrt(self.dim)
        scaled, towards = told * self.gain, aim * self.gain
        meeting = torch.cat([towards[None], told, scaled * self.gain])
        pairs = torch.stack([_pairs(told), _pairs(scaled)])
        return _Queries(
            x,
            meeting,
            _products(towards, told),
            pairs,
            2 * (scaled @ shift),
            (aim @ shift)[:, None],
        )

    def _query_node(
        self, x: Tensor, told: Tensor, context: Context, drop: "_Dropout | None"
    ) -> Tensor:
        """The query's own node, before the layer norm: (q, d)."""
        asks = x @ context.similar
        attention = torch.cat([asks @ context.rows.T, _products(x, asks)[:, :, None]], 2).softmax(2)
        if drop is not None:
            attention = attention * drop.of_query[:, None]
        to_rows, to_itself = torch.split(attention, [attention.shape[2] - 1, 1], 2)
        heard = to_rows @ context.messages + to_itself * told
        return self._with_bias(x, drop) + heard.sum(0)

    def _cosines(
        self,
        queries: "_Queries",
        classes: Context,
        drop: "_Dropout | None" = None,
        tile: slice = slice(None),
    ) -> Tensor:
        """16 times the cosine of LN(z_x) and LN(z_j), both over √d: (q, classes)."""
        excess = (
            queries.x @ classes.asking.transpose(1, 2)
            - classes.largest[:, None]
            - classes.log_rest[:, None]
        )
        keep, take = (
            torch.sigmoid(-excess),
            torch.sigmoid(excess),
        )  # (h, q, N): of a prototype's attention, for the others and for the query
        z = _Span(keep, take if drop is None else take * drop.to_query[:, None, tile])
        # All that the queries have to do with the classes: (1 + h or 1 + 2h, q, N) for each vector of the basis.
        met = [
            (queries.meeting.flatten(0, 1) @ own.T).unflatten(0, queries.meeting.shape[:2])
            for own in classes.basis
        ]
        aimed, mixed = zip(*(torch.split(m, [1, len(m) - 1]) for m in met), strict=True)
        product = z.linear([m.squeeze(0) for m in aimed], queries.product)
        squares = z.squares(
            classes.gram, [m.unflatten(0, (len(classes.gram), -1)) for m in mixed], queries.pairs
        ).unbind()
        inverse = _inverse_root(squares[0])
        if (
            self.shift is None
            or classes.along_shift is None
            or queries.along_shift is None
            or queries.aim_shift is None
        ):
            return product * inverse
        along = z.linear(classes.along_shift, queries.along_shift)
        norm = torch.addcmul(
            self.shift.square().mean(), torch.addcmul(along, squares[1], inverse), inverse
        )
        return torch.addcmul(queries.aim_shift, product, inverse) * _inverse_root(norm)

    # Parts

    def _with_bias(self, nodes: Tensor, drop: "_Dropout | None" = None) -> Tensor:
        if self.bias is None:
            return nodes
        return nodes + (self.bias if drop is None else self.bias * drop.output)

    def _centred(self, vectors: Tensor) -> Tensor:
        """A layer norm sees nothing of a vector's mean; taking it out first keeps the squares small."""
        return vectors - vectors.mean(-1, keepdim=True) if self.config.layer_norm else vectors

    def normed(self, vectors: Tensor) -> Tensor:
        """Features or weights as the last step of equation 5 leaves them, so that they can be compared with adapted weights."""
        return (
            F.layer_norm(vectors, (self.dim,), self.gain, self.shift, EPSILON)
            if self.config.layer_norm
            else vectors
        )


@dataclass(frozen=True)
class _Queries:
    """What scoring needs of a batch of queries, whatever the class."""

    x: Tensor  # (q, d)
    meeting: Tensor  # (1 + h or 1 + 2h, q, d): the vectors whose products with the classes' basis are wanted
    product: Tensor  # (h, q) of what is told and the adapted query
    pairs: Tensor  # (1 or 2, h, h, q) of what is told by the heads; the same weighted by the layer norm's gain squared
    along_shift: Tensor | None = (
        None  # (h, q) twice the product of what is told with gain · shift / √d
    )
    aim_shift: Tensor | None = None  # (q, 1) that of the adapted query with shift / √d


class _Span:
    """z_j = own_j + Σ_h keep_hj · G_hj + take_hj · told_h, by its coefficients (h, q, N)."""

    def __init__(self, keep: Tensor, take: Tensor) -> None:
        self.keep, self.take = keep, take

    def linear(self, classes: Sequence[Tensor] | Tensor, queries: Tensor) -> Tensor:
        """A linear function of z, from its values on the basis (1 + h, q or 1, N) and on what is told (h, q)."""
        value, *others = classes
        for keep, take, of_class, of_query in zip(
            self.keep, self.take, others, queries[:, :, None], strict=True
        ):
            value = torch.addcmul(torch.addcmul(value, keep, of_class), take, of_query)
        return value

    def squares(self, gram: Tensor, mixed: Sequence[Tensor], told: Tensor) -> Tensor:
        """‖z‖² in one or two norms at once, (1 or 2, q, N): from products of the basis vectors with each other (1 or 2, 1 + h, 1 + h, N),
        with what is told (1 + h times 1 or 2, h, q, N), and of that (1 or 2, h, h, q)."""
        # Taken apart at once, not one by one: then their gradients are put together at once too.
        vectors, heads = gram.shape[1], len(self.keep)
        among = gram[:, None].flatten(2, 3).unbind(2)
        met = [of_one.unbind(1) for of_one in mixed]
        said = told[..., None].flatten(1, 2).unbind(1)
        value = among[0]
        for h, (keep, take) in enumerate(zip(self.keep, self.take, strict=True)):
            by_keep, by_take = among[1 + h], met[0][h]
            for i, (other, given) in enumerate(zip(self.keep, self.take, strict=True)):
                by_keep = torch.addcmul(by_keep, other, among[(1 + h) * vectors + 1 + i], value=0.5)
                by_keep = torch.addcmul(by_keep, given, met[1 + h][i])
                by_take = torch.addcmul(by_take, given, said[h * heads + i], value=0.5)
            value = torch.addcmul(
                torch.addcmul(value, keep, by_keep, value=2), take, by_take, value=2
            )
        return value


class _Dropout:
    """One mask a batch: a mask a query would need a graph a query."""

    def __init__(
        self, adapter: Adapter, device: torch.device, classes: int, generator: Generator | None
    ) -> None:
        heads, rate = adapter.config.heads, adapter.config.attention_dropout

        def mask(rate: float, *shape: int) -> Tensor:
            return (torch.rand(shape, device=device, generator=generator) >= rate).float() / (
                1 - rate
            )

        self.among = mask(rate, heads, classes, classes)
        self.to_query = mask(rate, heads, classes)
        self.of_query = mask(rate, heads, classes + 1)
        self.output = mask(adapter.config.output_dropout, adapter.dim)


def _exponentials(e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(e − max), the max and the sum, over the last axis: a softmax in parts."""
    top = e.amax(-1, keepdim=True).detach()
    powers = (e - top).exp()
    return powers, top, powers.sum(-1, keepdim=True)


def _at_once(rows: Tensor) -> int:
    """How many nodes or queries to take at a time."""
    return max(16, BLOCK.get(rows.device.type, 2**24) // max(1, len(rows)))


def _gram(basis: Tensor, summed: Callable[[Tensor], Tensor]) -> Tensor:
    """Inner products of each class's basis vectors, their terms (N, d) summed in one or two ways: (1 or 2, 1 + h, 1 + h, N)."""
    vectors, heads = basis.unbind(), range(len(basis))
    above = {(i, j): summed(vectors[i] * vectors[j]) for i in heads for j in heads if i <= j}
    return torch.stack(
        [torch.stack([above[min(i, j), max(i, j)] for j in heads], 1) for i in heads], 1
    )


def _exactly(a: Tensor, b: Tensor) -> Tensor:
    """A product of small matrices in double precision: two maps made one should not round twice."""
    return (a.double() @ b.double()).to(a.dtype)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of vectors."""
    return (a * b).sum(-1)


def _pairs(told: Tensor) -> Tensor:
    """Inner products of what a query tells by the heads: (h, h, q)."""
    return torch.stack([_products(one, told) for one in told])


def _joined(parts: list[Tensor], axis: int) -> Tensor:
    """Concatenated, without a copy of a single part."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _inverse_root(value: Tensor) -> Tensor:
    return value.clamp(min=torch.finfo(value.dtype).tiny).rsqrt()
