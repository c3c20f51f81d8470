"""Results to test with: made from random predictions, so that their numbers belong together."""

import numpy as np
import pytest

from fewmore.research import metrics, results


def make(
    benchmark="cifar100",
    method="cec",
    seeds=(0,),
    draws=(None,),
    base=60,
    way=5,
    sessions=9,
    skill=0.6,
    extra=(),
    **about,
):
    session_of_class = np.repeat(np.arange(sessions), [base] + [way] * (sessions - 1))
    labels = np.repeat(np.arange(len(session_of_class)), 4)
    runs = []
    for seed in seeds:
        for draw in draws:
            rng = np.random.default_rng([seed, draw or 0])
            predictions = np.full((sessions, len(labels)), -1)
            for session in range(sessions):
                asked = session_of_class[labels] <= session
                guesses = rng.integers(0, (session_of_class <= session).sum(), len(labels))
                predictions[session, asked] = np.where(
                    rng.random(len(labels)) < skill, labels, guesses
                )[asked]
            summary = metrics.summarise(labels, session_of_class, predictions)
            more = {name: rng.random(sessions) * 100 for name in extra}
            runs.append(
                results.Run(
                    seed, draw, summary, {"pretrain": 41.239, "evaluate": 1.5}, 812.34, more
                )
            )
    sizes = [results.SessionSize(base + way * i, 4 * (base + way * i)) for i in range(sessions)]
    about = {
        "recipe": "official",
        "split": "official",
        "command": f"fewmore run {benchmark} --method {method}",
        **about,
    }
    return results.gather(runs, benchmark=benchmark, method=method, sessions=sizes, **about)


@pytest.fixture(scope="session")
def make_result():
    return make
