"""Explanations of a missing or suspect controller.

The election's rules are applied to /controller, /controller_epoch and /cluster/id as ZooKeeper holds them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from controller.core.explaining import ClusterView, Diagnosis, no_controller
from controller.core.obstacles import HIGHEST_EPOCH, SHELL, Obstacle, epoch_in, in_controller, in_epoch, named_in
from controller.zookeeper import paths

SUBJECT = "controller"


def explain_controller(view: ClusterView) -> Iterator[Diagnosis]:
    """Worst first; nothing where a registered broker leads and its znodes are sound."""
    for obstacle in obstacles(view):
        yield Diagnosis(
            SUBJECT,
            f"blocked ({obstacle.reason.value})",
            obstacle.why,
            "a broker becomes controller by creating /controller and raising /controller_epoch in one transaction;"
            " while something is in the way, every broker tries again with a back-off",
            (obstacle.change,),
        )
    if reason := no_controller(view):
        yield Diagnosis(
            SUBJECT,
            "missing",
            reason,
            "whichever broker creates /controller leads",
            ("a broker that lives stands for election: look at its log, and at its session",),
        )
    yield from _of_another_session(view)
    yield from _epoch(view)
    if view.tree.get(paths.CLUSTER_ID) is None:
        yield Diagnosis(
            "the cluster's id",
            "missing",
            f"{paths.CLUSTER_ID} is not there",
            "a broker reads the cluster's id when it starts, and makes a new one if there is none; brokers of different"
            " ids do not belong together",
            (f"create {paths.CLUSTER_ID} with the id in the brokers' logs and meta.properties",),
        )
    if view.paused is not None:
        yield Diagnosis(
            SUBJECT,
            "paused",
            f"{paths.CONTROLLER_PAUSE} says: {view.paused}",
            "while it is there leaders are elected for failures, and nothing is moved by choice",
            ("camerlengo pause --resume",),
        )


def obstacles(view: ClusterView) -> list[Obstacle]:
    found = (in_controller(view.tree.get(paths.CONTROLLER)), in_epoch(view.tree.get(paths.CONTROLLER_EPOCH)))
    return [obstacle for obstacle in found if obstacle is not None]


def _of_another_session(view: ClusterView) -> Iterator[Diagnosis]:
    row = view.tree.get(paths.CONTROLLER)
    if row is None or not row.stat.ephemeral_owner:
        return
    named = named_in(row)
    sessions = {broker.broker_id: broker.session for broker in view.state.brokers}
    if named not in sessions or sessions[named] == row.stat.ephemeral_owner:
        return
    yield Diagnosis(
        SUBJECT,
        "in doubt",
        f"{paths.CONTROLLER} names broker {named} and belongs to session 0x{row.stat.ephemeral_owner:x}; that broker is"
        f" registered in session 0x{sessions[named]:x}",
        "only the session that owns /controller decides who leads: it is an earlier session of that broker, which will"
        " expire, or somebody has rewritten the znode",
        (f"if it lasts longer than a session timeout, delete it ({SHELL} delete {paths.CONTROLLER})",),
    )


def _epoch(view: ClusterView) -> Iterator[Diagnosis]:
    """/controller_epoch is only unusual, never in the way: the next election corrects it."""
    row, states = view.tree.get(paths.CONTROLLER_EPOCH), view.state.partitions.states
    known = int(states.controller_epoch[states.present].max(initial=0))
    rule = (
        "each term's epoch is above all earlier ones: brokers refuse requests of a lower epoch. The controller notices"
        " a change of /controller_epoch at its next write, and the next election corrects it"
    )
    change = f"delete {paths.CONTROLLER} ({SHELL} delete {paths.CONTROLLER}): a controller is elected at once"
    if row is None:
        if known or view.state.controller is not None:
            why = f"{paths.CONTROLLER_EPOCH} is not there, and epoch {known} is in use"
            yield Diagnosis("the controller epoch", "missing", why, rule, (change,))
        return
    epoch = epoch_in(row)
    if epoch is None:
        return
    if epoch > HIGHEST_EPOCH:
        why = f"{paths.CONTROLLER_EPOCH} holds {epoch}, above {HIGHEST_EPOCH}; the highest epoch in use is {known}"
        yield Diagnosis("the controller epoch", "too high", why, rule, (change,))
    elif epoch < known:
        why = f"{paths.CONTROLLER_EPOCH} holds {epoch}, and a partition's state has epoch {known}"
        yield Diagnosis("the controller epoch", "too low", why, rule, (change,))
