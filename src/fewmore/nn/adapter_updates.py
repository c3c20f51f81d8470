"""Add, remove and replace a class in an adapter's context without computing it anew.

A new prototype w_n adds one term to each softmax, so with L_j, O_j and e_jn of `nn/adapter.py`

    a_jn = σ(e_jn − L_j)        L_j' = logaddexp(L_j, e_jn)        O_j' = O_j + a_jn (V w_n − O_j)

and one node of its own is computed in full: O(Nd + d²). Removing a class undoes this. Each removal
magnifies earlier rounding errors by 1 / (1 − a_jn), so nodes that have lost a good part of their
softmax sum are computed in full. All functions return a new context and leave the old one as it is.

N: classes   d: features   h: heads
"""

from dataclasses import replace

import torch
from torch import Tensor

from fewmore.nn.adapter import Adapter
from fewmore.nn.closed_form import Context, basis_products
from fewmore.nn.prototypes import GrowingBuffer

MIN_RETAINED = 0.9  # a node of whose softmax sum less than this share is left is computed in full


@torch.no_grad()
def add_class(adapter: Adapter, context: Context, prototype: Tensor) -> Context:
    """Append a class with this prototype (d,), in O(Nd + d²)."""
    count = len(context)
    query = prototype @ context.similarity_map  # (h, d)
    value = context.value_map @ prototype  # (h, d)

    # The nodes that are there already attend to the new one too.
    logits = context.queries @ prototype  # (h, N) e_jn
    share = torch.sigmoid(logits - context.max_logits - context.log_sums)  # a_jn
    max_logits = torch.maximum(context.max_logits, logits)
    log_sums = torch.logaddexp(
        context.log_sums + (context.max_logits - max_logits), logits - max_logits
    )
    retained = (context.retained / (1 - share)).clamp(max=1)

    # The new node attends to all.
    buffers = context.buffers or tuple(
        map(GrowingBuffer, (context.prototypes, context.queries, context.values))
    )
    added = (prototype[None], query[:, None], value[:, None])
    buffers = tuple(buffer.grown(new) for buffer, new in zip(buffers, added, strict=True))
    prototypes, queries, values = (buffer.filled for buffer in buffers)
    new_max_logits, new_log_sums, new_outputs = adapter.attend(query[:, None], prototypes, values)

    basis = context.basis.new_empty(len(context.basis), count + 1, adapter.dim)
    basis[0, :count] = context.basis[0]
    basis[0, count] = adapter.residual(prototype)
    # lerp is O_j + a_jn (V w_n − O_j)
    torch.lerp(context.basis[1:], value[:, None], share[:, :, None], out=basis[1:, :count])
    basis[1:, count:] = new_outputs
    changed = replace(
        context,
        prototypes=prototypes,
        queries=queries,
        values=values,
        basis=basis,
        max_logits=torch.cat([max_logits, new_max_logits], 1),
        log_sums=torch.cat([log_sums, new_log_sums], 1),
        retained=torch.cat([retained, torch.ones_like(new_log_sums)], 1),
        buffers=buffers,
    )
    return _with_products(adapter, changed)


def remove_class(adapter: Adapter, context: Context, index: int) -> Context:
    """Remove a class, in O(Nd + d²) on average: few nodes are computed in full."""
    others = torch.arange(len(context), device=context.prototypes.device) != index
    prototypes = context.prototypes[others]
    queries = context.queries[:, others]
    values = context.values[:, others]
    max_logits = context.max_logits[:, others]
    log_sums = context.log_sums[:, others]
    outputs = context.basis[1:, others]

    logits = queries @ context.prototypes[index]  # (h, N − 1) e_jn
    share = (logits - max_logits - log_sums).exp()  # a_jn
    retained = context.retained[:, others] * (1 - share)
    share = share.clamp(max=1 - MIN_RETAINED)  # nodes with a larger share are computed in full
    rest = 1 - share[:, :, None]
    outputs = (outputs - share[:, :, None] * context.values[:, index, None]) / rest
    log_sums = log_sums + torch.log1p(-share)

    stale = (retained < MIN_RETAINED).any(0)
    if stale.any():
        max_logits[:, stale], log_sums[:, stale], outputs[:, stale] = adapter.attend(
            queries[:, stale], prototypes, values
        )
        retained[:, stale] = 1.0
    basis = torch.cat([context.basis[:1, others], outputs])
    kept = {"prototypes": prototypes, "queries": queries, "values": values, "basis": basis}
    sums = {"max_logits": max_logits, "log_sums": log_sums, "retained": retained}
    changed = replace(context, **kept, **sums, buffers=())
    return _with_products(adapter, changed)


def replace_class(adapter: Adapter, context: Context, index: int, prototype: Tensor) -> Context:
    """Give a class another prototype (d,), as when more images refine it."""
    last = len(context) - 1
    appended = add_class(adapter, remove_class(adapter, context, index), prototype)
    order = [*range(index), last, *range(index, last)]
    reordered = replace(appended, **appended.per_class(order), buffers=())
    return _with_products(adapter, reordered)


def _with_products(adapter: Adapter, context: Context) -> Context:
    """Recompute the inner products of a context whose basis has changed."""
    gram, shift_products = basis_products(context.basis, adapter.gain, adapter.shift)
    return replace(context, gram=gram, shift_products=shift_products)
