"""Compute the earth mover's distance of many small optimal transport problems at once.

A problem has source weights a (n), target weights b (m) and a cost c_ij for each pair. The
distance is the least cost of a transport plan, and by duality also

    max Σ_i a_i f_i + Σ_j b_j g_j      over all potentials f, g with f_i + g_j ≤ c_ij

so any feasible potentials bound the distance from below. They are found by Sinkhorn's algorithm on
the problem with entropic regularization ε: the plan exp((f_i + g_j − c_ij) / ε) is scaled by u to
the source weights, then by v to the target weights, and so on. A small ε is exact but converges
slowly, so ε starts large and is halved again and again (ε-scaling), each time from the potentials
reached. The scalings u and v of one ε stay moderate, and float32 is enough. At the end the
potentials are made feasible, and their dual value is returned. It is never above the distance, and
converges much sooner than the cost of the plan itself.

Each scaling step is over-relaxed by nearly a factor of two, which takes a fraction of the
iterations. The extra step has a limit: if the sum of row i is e^t times too small and its scaling
grows by e^(t + h), the dual value changes by a_i (t + h − e^h + e^−t). With h = 0.9 t up to 0.3
that is never negative, whatever t is, so potentials only ever improve.

Problems lie along the last dimension, which is the one that CPUs and GPUs vectorize.

n, m: places on either side   B: problems
"""

import torch
from torch import Tensor

EPSILONS = tuple(0.2 / 2**k for k in range(10))  # down to 0.0004
ITERATIONS = 12  # for each ε
OVER_RELAXATION = 0.9  # extra step of the logarithm of a scaling, relative to the step
MAX_EXTRA_STEP = 0.3
MIN_WEIGHT = 1e-7  # of a place, in the iterations: the logarithm of 0 is not finite
MIN_EXPONENT = -60.0  # anything below is as good as zero, and subnormal numbers are slow


@torch.no_grad()
def earth_movers_distance(costs: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return the least cost of moving a unit of mass from source to target: (B,).

    Costs (n, m, B) should be of the order of one. Weights `source` (n, B) and `target` (m, B) are
    at least 0 and not all 0; they are scaled to sum to one.
    """
    source = source / source.sum(0)
    target = target / target.sum(0)
    row_sums = source.clamp(min=MIN_WEIGHT)
    column_sums = target.clamp(min=MIN_WEIGHT)
    f = costs.amin(1)
    g = (costs - f[:, None]).amin(0)
    plan = torch.empty_like(costs)
    buffer = torch.empty_like(costs)
    for epsilon in EPSILONS:
        torch.add(f[:, None], g, out=plan).sub_(costs).div_(epsilon).clamp_(min=MIN_EXPONENT).exp_()
        u = row_sums / plan.sum(1)
        v = column_sums / torch.mul(plan, u[:, None], out=buffer).sum(0)
        for _ in range(ITERATIONS):
            u = _over_relax(u, row_sums / torch.mul(plan, v, out=buffer).sum(1))
            v = _over_relax(v, column_sums / torch.mul(plan, u[:, None], out=buffer).sum(0))
        f = f.add(u.log_(), alpha=epsilon)
        g = g.add(v.log_(), alpha=epsilon)
    # The largest feasible f for this g, then the largest feasible g for that f.
    f = torch.sub(costs, g, out=buffer).amin(1)
    g = torch.sub(costs, f[:, None], out=buffer).amin(0)
    return (source * f).sum(0) + (target * g).sum(0)


def _over_relax(old: Tensor, new: Tensor) -> Tensor:
    """Return scalings beyond `new`, in the direction from `old`; overwrites `old`."""
    extra = torch.div(new, old, out=old).log_().mul_(OVER_RELAXATION).clamp_(max=MAX_EXTRA_STEP)
    return extra.exp_().mul_(new)
