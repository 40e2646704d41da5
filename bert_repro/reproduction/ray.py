"""A study on a Ray cluster: each run is a task, and what starts from it waits for it."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from bert_repro.configs import StudyConfig
from bert_repro.errors import NonFiniteError, UserError
from bert_repro.reproduction.runner import Worker
from bert_repro.reproduction.suite import Run

logger = logging.getLogger("bert_repro")


def submit(config: StudyConfig, runs: Sequence[Run]) -> None:
    """Makes the runs on the cluster of RAY_ADDRESS or, without one, on a cluster of this machine.

    A task asks for one GPU where the cluster has any, else for one CPU. All nodes must see the folders of the study.

    Args:
        config: folders, and the name of the scale.
        runs: the plan.

    Raises:
        UserError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError("--engine ray: Ray is not installed; pip install bert-repro[ray]") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    resources: dict[str, Any] = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
    task = ray.remote(**resources)(_make)
    alone = dataclasses.replace(config, engine="local")
    results: dict[str, Any] = {}
    for run in runs:
        before = results[run.start.id] if run.start else None
        results[run.id] = task.remote(alone, run, before)
    waiting = {reference: name for name, reference in results.items()}
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1)
        for reference in ready:
            ray.get(reference)
            logger.info("%d of %d: %s", len(results) - len(waiting) + 1, len(results), waiting.pop(reference))
    Worker(alone).work(runs)  # all are settled: it reports those that failed


def _make(config: StudyConfig, run: Run, before: object) -> None:
    """One run, in a process of the cluster; `before` is there once the run that it starts from is settled."""
    try:
        Worker(config).work([run] if run.start is None else [run.start, run])
    except NonFiniteError:
        return  # the others go on
