"""The earth mover's distance of many small problems at once.

A problem has n heaps of earth and m holes of the same total size, and a cost for each pair; its distance is the least cost of
moving all of it. By duality that is also the most that prices can earn,

    max Σ_i a_i f_i + Σ_j b_j g_j      over all prices f, g with f_i + g_j ≤ c_ij

so any such prices bound the distance from below. They are found by Sinkhorn's iteration on the problem smoothed by ε: the plan
exp((f_i + g_j − c_ij)/ε) is scaled to the right row sums, then to the right column sums, and so on. A small ε is exact but
converges slowly, so ε starts large and is halved again and again, each time from the prices reached; the scales u and v of one
ε stay moderate, and float32 is enough. In the end the prices are made to keep every constraint, and what they earn is the
answer. It is never above the distance and comes close to it much sooner than the cost of a plan made of the same scales.

Each scaling goes nearly twice as far as it should (over-relaxation), which takes a fraction of the iterations. It must not always:
if a row sum is e^t times too small and its scale grows by e^(t + h), the smoothed problem's value changes by a_i (t + h − e^h + e^−t).
With h = 0.9 t up to 0.3 that is never a loss, whatever t is, so prices only ever improve.

Problems lie along the last dimension, where a CPU's vector units and a GPU's threads both like them.

n, m: places on either side   B: problems
"""

import torch
from torch import Tensor

EPSILONS = tuple(0.2 / 2**k for k in range(10))  # down to 0.0004
ITERATIONS = 12  # at each of them
BEYOND, AT_MOST = (
    0.9,
    0.3,
)  # how much further than it should a scale goes, as a share of the way, and on a logarithmic measure
LEAST = 1e-7  # of a weight, while prices are sought: a place with nothing to give or take needs a price too
FAINTEST = (
    -60.0
)  # an exponent below this makes no difference, but would make subnormal numbers, which are slow


@torch.no_grad()
def earth_movers_distance(costs: Tensor, given: Tensor, taken: Tensor) -> Tensor:
    """The least cost of moving a unit of mass from where it lies, `given` (n, B), to where it shall lie, `taken` (m, B): (B,).

    Costs (n, m, B) should be of the order of one. Weights are at least 0, not all 0, and are scaled to sum to one.
    """
    given, taken = given / given.sum(0), taken / taken.sum(0)
    rows, columns = given.clamp(min=LEAST), taken.clamp(min=LEAST)
    f = costs.amin(1)
    g = (costs - f[:, None]).amin(0)
    plan, scaled = torch.empty_like(costs), torch.empty_like(costs)
    for epsilon in EPSILONS:
        torch.add(f[:, None], g, out=plan).sub_(costs).div_(epsilon).clamp_(min=FAINTEST).exp_()
        u = rows / plan.sum(1)
        v = columns / torch.mul(plan, u[:, None], out=scaled).sum(0)
        for _ in range(ITERATIONS):
            u = _beyond(rows / torch.mul(plan, v, out=scaled).sum(1), u)
            v = _beyond(columns / torch.mul(plan, u[:, None], out=scaled).sum(0), v)
        f = f.add(u.log_(), alpha=epsilon)
        g = g.add(v.log_(), alpha=epsilon)
    f = torch.sub(costs, g, out=scaled).amin(1)
    g = torch.sub(costs, f[:, None], out=scaled).amin(0)
    return (given * f).sum(0) + (taken * g).sum(0)


def _beyond(wanted: Tensor, before: Tensor) -> Tensor:
    """Scales that go from those before to the wanted ones, and on."""
    return (
        torch.div(wanted, before, out=before)
        .log_()
        .mul_(BEYOND)
        .clamp_(max=AT_MOST)
        .exp_()
        .mul_(wanted)
    )
