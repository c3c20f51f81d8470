"""Compute contrastive losses: of views of the same image, with and without a queue, and of labels.

Chen, Kornblith, Norouzi, Hinton: A Simple Framework for Contrastive Learning of Visual
Representations (SimCLR), ICML 2020, https://arxiv.org/abs/2002.05709; van den Oord, Li, Vinyals:
Representation Learning with Contrastive Predictive Coding (InfoNCE), 2018,
https://arxiv.org/abs/1807.03748; Khosla et al.: Supervised Contrastive Learning, NeurIPS 2020,
https://arxiv.org/abs/2004.11362; Oh, Baik, Lee: CLOSER, ECCV 2024,
https://arxiv.org/abs/2410.05627 (`inter_class_cosine`).

All take features of any length and compare them by cosines. Shapes do not depend on values, so a
captured step may hold any of them.

n: images   v: views of each   m: candidates   d: features
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def view_contrast(features: Tensor, views: int, scale: float) -> Tensor:
    """Compute the loss that tells the views of an image from all other views (NT-Xent).

    Each view is an anchor. Its positives are the other views of its image, and the loss is the mean
    over them of −log softmax(scale · cosine) among all views but itself.

    Args:
        features: (v · n, d), first all images in their first view, then in the next.
        views: v, at least 2.
        scale: factor of the cosines, one over the temperature.
    """
    image = torch.arange(len(features) // views, device=features.device).repeat(views)
    return _contrast(features, image, scale)


def label_contrast(features: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Compute the supervised contrastive loss: positives are all others with the same label.

    Anchors without a positive do not count.
    """
    return _contrast(features, labels, scale)


def info_nce(queries: Tensor, keys: Tensor, others: Tensor, scale: float) -> Tensor:
    """Compute the loss that tells each query's own key from others, such as those of a queue.

    Args:
        queries: (n, d).
        keys: (n, d), the key of each query.
        others: (m, d), negatives of every query.
        scale: factor of the cosines, one over the temperature.
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries, keys, others = map(_unit, (queries, keys, others))
        own = (queries * keys).sum(1, keepdim=True)
        logits = scale * torch.cat([own, queries @ others.T], 1)
        return F.cross_entropy(logits, torch.zeros_like(logits[:, 0], dtype=torch.int64))


def label_contrast_with(
    anchors: Tensor, labels: Tensor, candidates: Tensor, candidate_labels: Tensor, scale: float
) -> Tensor:
    """Compute the supervised contrastive loss against candidates, such as keys and a queue.

    Positives of an anchor are the candidates with its label; where there is none, the anchor does
    not count.

    Args:
        anchors: (n, d).
        labels: (n,).
        candidates: (m, d).
        candidate_labels: (m,); a negative label is nobody's, as of an empty place in a queue.
        scale: factor of the cosines, one over the temperature.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        log_shares = (scale * _unit(anchors) @ _unit(candidates).T).log_softmax(1)
        return _mean_of_positives(log_shares, labels[:, None] == candidate_labels)


def each_positive_contrast(
    queries: Tensor,
    keys: Tensor,
    labels: Tensor,
    others: Tensor,
    other_labels: Tensor,
    scale: float,
) -> Tensor:
    """Compute the loss that tells each positive of a query from its negatives, one at a time.

    Positives are the query's own key and those of the others with its label, negatives the rest.
    The loss is the mean over positives of −log of e^p / (e^p + Σ e^n), where positives do not
    compete with each other as in `label_contrast_with` (Dai et al.: UniMoCo, 2021,
    https://arxiv.org/abs/2103.10773).

    Args:
        queries: (n, d).
        keys: (n, d), the key of each query.
        labels: (n,), of the queries.
        others: (m, d), such as those of a queue.
        other_labels: (m,); a negative label is nobody's.
        scale: factor of the cosines, one over the temperature.
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries, keys, others = map(_unit, (queries, keys, others))
        same = (labels[:, None] == other_labels).float()
        own = scale * (queries * keys).sum(1)
        logits = scale * queries @ others.T
        # A finite number in place of −∞: where all are positives, gradients stay numbers.
        negatives = logits.masked_fill(same > 0, -1e4).logsumexp(1)
        positives = F.softplus(negatives - own)
        positives = positives + (same * F.softplus(negatives[:, None] - logits)).sum(1)
        return (positives / (1 + same.sum(1))).mean()


def inter_class_cosine(features: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean cosine over all pairs of features with different labels.

    CLOSER's loss subtracts it, which draws classes together; added, it drives them apart.
    """
    with torch.autocast(features.device.type, enabled=False):
        unit = _unit(features)
        different = (labels[:, None] != labels).float()
        return (unit @ unit.T * different).sum() / different.sum().clamp(min=1)


def inter_class_cosine_with(
    anchors: Tensor, labels: Tensor, candidates: Tensor, candidate_labels: Tensor
) -> Tensor:
    """Compute the mean cosine over all pairs of an anchor and a candidate with different labels."""
    with torch.autocast(anchors.device.type, enabled=False):
        different = (labels[:, None] != candidate_labels).float()
        # The sum of an anchor's candidates comes first: no gradient has the size of all pairs.
        sums = different @ _unit(candidates)
        return (_unit(anchors) * sums).sum() / different.sum().clamp(min=1)


def _contrast(features: Tensor, groups: Tensor, scale: float) -> Tensor:
    """Compute the contrastive loss where positives are all others of the same group."""
    with torch.autocast(features.device.type, enabled=False):
        unit = _unit(features)
        itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        logits = (scale * unit @ unit.T).masked_fill(itself, -torch.inf)
        log_shares = logits.log_softmax(1).masked_fill(itself, 0)
        return _mean_of_positives(log_shares, (groups[:, None] == groups) & ~itself)


def _mean_of_positives(log_shares: Tensor, positive: Tensor) -> Tensor:
    """Return minus the mean over anchors of the mean log share of their positives."""
    weights = positive.float()
    counts = weights.sum(1)
    by_anchor = (log_shares * weights).sum(1) / counts.clamp(min=1)
    return -by_anchor.sum() / (counts > 0).sum().clamp(min=1)


def _unit(features: Tensor) -> Tensor:
    return F.normalize(features.float(), dim=1)
