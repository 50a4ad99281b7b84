"""The first steps with `Simulation`: a cluster is built, asked, struck, watched, and joined by a node of one's own.

python docs/examples/first_world.py
"""

from __future__ import annotations

from controller.protocol import ApiKey, MetadataRequest
from controller.simulator import Simulation, Slow, TraceRecord
from controller.trace import ControllerElected


def whole_again() -> float:
    """How many virtual milliseconds a cluster takes from its controller's death until it is whole again."""
    world = Simulation(brokers=5, seed=7, session_timeout_ms=2_000)
    world.run_until(lambda: len(world.registered) == 5)
    assert world.answer(world.create_topic("payments", partitions=6, replication_factor=3)) == "done"
    world.run_until_rest()

    controller = world.controller
    assert controller is not None
    began_ms = world.now_ms
    world.kill(controller)
    world.run_until(lambda: world.controller not in (None, controller))
    world.run_until_rest()

    print(f"broker {controller} is dead; {world.controller} leads in epoch {world.controller_epoch}")
    for (topic, partition), state in world.partitions().items():
        print(f"  {topic}-{partition}: leader {state.leader}, ISR {list(state.isr)}")
    return world.now_ms - began_ms


def watched() -> list[str]:
    """Return the first elections of a run, from its events."""
    world = Simulation(seed=7)
    elections: list[str] = []

    def on_event(record: TraceRecord) -> None:
        if isinstance(record.event, ControllerElected):
            elections.append(f"{record.at_ms:.0f} ms: broker {record.node}, epoch {record.event.controller_epoch}")
            world.clock.call_later(1_000, lambda: world.pause(record.node, for_ms=5_000))

    world.subscribe(on_event)
    world.inject(Slow(at_ms=2_000, source=1, target=2, slower=50, for_ms=3_000))
    world.run_until(lambda: len(elections) == 3)
    return elections


def joined() -> list[str]:
    """A node of one's own: it asks brokers, and speaks to its like."""
    world = Simulation(seed=7)
    world.run_until(lambda: len(world.registered) == 3)
    probe, log = world.add_node("probe"), world.add_node("log")
    lines: list[str] = []
    log.on_message = lambda sender, message: lines.append(
        f"{world.now_ms:.1f} ms: node {sender} says {message.decode()}"
    )

    def look() -> None:
        asked = probe.ask(1, ApiKey.METADATA, MetadataRequest((), False))

        def answered() -> None:
            said = "nothing" if asked.error else f"controller {asked.result().controller_id}"
            probe.send(log.id, said.encode())

        asked.on_done(answered)
        probe.clock.call_later(500, look)

    look()
    world.run_for(1_200)
    world.kill(1)
    world.run_for(800)
    return lines


if __name__ == "__main__":
    print(f"whole again after {whole_again():.0f} ms")
    print("\n".join(watched()))
    print("\n".join(joined()))
