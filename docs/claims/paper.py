"""List the paper's claims: what it says, and by which comparisons each claim is judged."""

from collections.abc import Callable
from dataclasses import dataclass

from claims import ablation, comparison, episodes
from claims.confusion import confusion
from claims.evidence import COMPARED, MAIN, Evidence
from claims.judge import Comparison

SEEDS = {"ways-shots": 1}  # of a study; 3 elsewhere


@dataclass(frozen=True)
class Claim:
    """Describe a claim: the paper's statement, the criterion, and the study that decides it."""

    title: str
    statement: str
    criterion: str
    study: str
    compare: Callable[[Evidence], list[Comparison]]
    benchmarks: tuple[str, ...] = (MAIN,)


CLAIMS = (
    Claim(
        "Decoupling helps the linear and the cosine classifier",
        "On CUB200, features that are frozen after the base session lower the performance drop "
        "(PD): by 3.39 points with a linear classifier, by 28.81 with a cosine classifier.",
        "The decoupled row is compared with the one whose whole network is trained in every "
        "session, by PD and at the last session.",
        "ablation",
        ablation.decoupling,
    ),
    Claim(
        "Data initialisation helps all classifiers",
        "On CUB200, new class weights that start as the mean of their images' features are better "
        "than random ones, whichever the classifier. The paper's table shows that for the linear "
        "and the cosine classifier; it has L2 and DeepEMD with means only.",
        "The decoupled row with data initialisation is compared with the one without, by PD and "
        "at the last session.",
        "ablation",
        ablation.data_init,
    ),
    Claim(
        "The cosine classifier is the best of the four with data initialisation",
        "On CUB200, with frozen features and data initialisation, all four classifiers are good, "
        "and the cosine classifier is the best.",
        "The cosine row is compared with each of the three others, at the last session and on "
        "average, but not by PD, where the paper's own L2 row is lower.",
        "ablation",
        ablation.cosine_best,
    ),
    Claim(
        "An adapter learnt by plain meta-learning does not help",
        "On CUB200, the adapter brings nothing when it is learnt on episodes of unchanged base "
        "classes.",
        "The adapter by meta-learning is compared with no adapter, in reverse: it does not "
        "hold where the gain is beyond what is required, and holds in part where it is above 0.",
        "ablation",
        ablation.meta_learning,
    ),
    Claim(
        "Pseudo-incremental learning of the adapter helps",
        "On CUB200, the adapter learnt with rotated classes is better than the one learnt without "
        "in every session, by up to 3.13 points, and its PD is 2.87 points lower.",
        "CEC is compared with the adapter by meta-learning, with no stage 2, and with its own "
        "encoder after stage 2 without the graph, at the last session, on average and by PD. The "
        "third comparison is of the graph alone: stage 2 trains the encoder too.",
        "ablation",
        ablation.pseudo_incremental,
    ),
    Claim(
        "The query node helps (our own row)",
        "The query image joins the graph, to help the learning of context; the paper does not "
        "measure how much that brings.",
        "CEC is compared with CEC without the query node, at the last session, on average and "
        "by PD.",
        "ablation",
        ablation.query_node,
    ),
    Claim(
        "Large rotation angles beat small ones, and the mix of the large ones is best",
        "On CUB200, 180° and ±90° make better pseudo-incremental classes than small angles do: "
        "higher average accuracy and lower PD. A mix of 90°, 180° and 270° is best.",
        "The mean of the two large sets is compared with the mean of ±20°, ±10° and ±5°, and the "
        "mix with the best single set, on average and by PD. ±45° counts as neither.",
        "rotation",
        episodes.rotation,
    ),
    Claim(
        "Many ways and few shots are best",
        "On CUB200, episodes with more ways and fewer shots give a better last session; the best "
        "of 25 cells is 15 ways with 1 shot.",
        "The mean of all cells with 15 and 20 ways is compared with those with 1 and 5, and the "
        "mean of those with 1 and 5 shots with those with 15 and 20. The cell of 15 ways with "
        "1 shot holds if it is the best cell, and in part within what is required of the best.",
        "ways-shots",
        episodes.ways_shots,
    ),
    Claim(
        "The adapter makes the confusion matrix less scattered",
        "On CIFAR100, predictions without the adapter are scattered, above all those for new "
        "classes; with it, more lie on the diagonal.",
        "New classes at the last session: entropy of the predictions for a class (in bits), share "
        "of correct predictions, share of predictions of base classes. CEC is compared with its "
        "own features without the adapter, and with Decoupled-Cosine.",
        "confusion",
        confusion,
    ),
    Claim(
        "CEC drops less than TOPIC",
        "CEC's PD is lower than that of the best earlier method, TOPIC, by 10.80 points on "
        "CIFAR100 and 12.52 on miniImageNet.",
        "CEC is compared with TOPIC by PD. As tuned here TOPIC ends below a network that learns "
        "nothing after stage 1, so a win over it says little.",
        "comparison",
        comparison.drop_of_topic,
        COMPARED,
    ),
    Claim(
        "CEC is above all others",
        "CEC has the highest average accuracy and the lowest PD of all, in the comparison and in "
        "the ablation.",
        "CEC is compared with the best of the other rows, of the comparison and then of the "
        "ablation (published there: CUB200), on average, by PD and at the last session.",
        "comparison",
        comparison.above_all,
        COMPARED,
    ),
    Claim(
        "The order of the methods",
        "At the last session: Ft-CNN, then iCaRL, EEIL and NCM, then TOPIC, then the decoupled "
        "methods, then CEC.",
        "Each row of a step is compared with each row of the step below, at the last session. "
        "TOPIC and EEIL end below a network that learns nothing after stage 1.",
        "comparison",
        comparison.order,
        COMPARED,
    ),
    Claim(
        "Class means on a frozen backbone beat the earlier methods",
        "The abstract: a pre-trained backbone and a classifier of class means, without parameters "
        "of its own, can beat the state of the art of that time.",
        "Decoupled-Cosine is compared with the best of Ft-CNN, iCaRL, EEIL, NCM and TOPIC, at the "
        "last session and on average.",
        "comparison",
        comparison.class_means,
        COMPARED,
    ),
)


def command(study: str, benchmark: str) -> str:
    """Return the command that measures a study and writes it where `Evidence` looks for it."""
    seeds = SEEDS.get(study, 3)
    options = f"--benchmark {benchmark}" + (f" --seeds {seeds}" if seeds > 1 else "")
    return f"fewmore reproduce {study} {options} --out results/studies/{study}-{benchmark}"
