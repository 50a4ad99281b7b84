"""The fixtures `zookeeper`, `simulation` and `chaos`."""

from __future__ import annotations

import queue
import shlex
from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionLoss

from controller.cli.main import main
from controller.scenarios.files import load_scenario, parse_scenario
from controller.simulator import BrokenInvariant, NotInTime
from controller.simulator.plan_generator import draw_plan
from controller.testing import ChaosRuns, RunFailed, RunNotPossible, SimulationRuns, ZooKeeper

STATES_S = 30.0

QUIET = """
name = "quiet"
[parameters]
expected = 0
[cluster]
brokers = 1
[[steps]]
do = "start"
[[steps]]
do = "wait"
until = "registered"
[[steps]]
do = "wait"
until = "controller"
[expect]
failovers = { broker = "${expected}" }
"""


# -- zookeeper


def states(client: object) -> queue.Queue[str]:
    seen: queue.Queue[str] = queue.Queue()
    client.add_listener(seen.put)  # type: ignore[attr-defined]
    return seen


def test_a_session_that_expires_loses_its_ephemeral_znodes(zookeeper: ZooKeeper) -> None:
    first, second = zookeeper.client(), zookeeper.client()
    first.create("/mine", ephemeral=True)
    seen = states(first)
    zookeeper.expire(first)
    assert [seen.get(timeout=STATES_S) for _ in range(3)] == ["SUSPENDED", "LOST", "CONNECTED"]
    assert second.exists("/mine") is None
    assert "FAULT expire: session" in zookeeper.timeline()
    assert "client 1: LOST" in zookeeper.timeline()


@pytest.mark.zookeeper(tick_ms=50)
def test_a_client_that_is_cut_off_loses_its_session_by_time(zookeeper: ZooKeeper) -> None:
    client, other = zookeeper.client(timeout=0.3), zookeeper.client()
    session = client.client_id[0]
    client.create("/mine", ephemeral=True)
    gone: queue.Queue[object] = queue.Queue()
    other.exists("/mine", watch=gone.put)
    zookeeper.partition(session)
    gone.get(timeout=STATES_S)
    assert session not in zookeeper.sessions()
    zookeeper.heal(session)


def test_a_lost_reply_was_applied_or_was_not(zookeeper: ZooKeeper) -> None:
    client, other = zookeeper.client(), zookeeper.client()
    for path, applied in (("/applied", True), ("/not", False)):
        zookeeper.lose_reply(client, applied=applied)
        with pytest.raises(ConnectionLoss):
            client.create(path)
        assert (other.exists(path) is not None) == applied
        client.retry(client.exists, "/")


def test_a_server_that_stops_comes_back_with_its_data(zookeeper: ZooKeeper) -> None:
    client = zookeeper.client()
    client.create("/kept", b"value")
    seen = states(client)
    zookeeper.drop_connection(client)
    assert [seen.get(timeout=STATES_S) for _ in range(2)] == ["SUSPENDED", "CONNECTED"]
    zookeeper.stop()
    assert seen.get(timeout=STATES_S) == "SUSPENDED"
    zookeeper.start()
    assert seen.get(timeout=STATES_S) == "CONNECTED"
    zookeeper.slow(1)
    zookeeper.pause()
    reading = client.get_async("/kept")
    zookeeper.resume()
    assert reading.get(timeout=STATES_S)[0] == b"value"
    zookeeper.slow(0)
    client.stop()
    with pytest.raises(ValueError, match="expire: expected a client with a session"):
        zookeeper.expire(0)


# -- simulation


@pytest.mark.simulation(seed=6)
def test_a_seed_of_the_swarm_passes(simulation: SimulationRuns) -> None:
    report = simulation.run()
    assert (report.verdict, report.seed) == ("pass", 6)
    assert simulation.run("swarm", seed=2).seed == 2


@pytest.mark.simulation(seed=7, settings={"expected": 0})
def test_a_scenario_passes_by_its_name_file_and_object(simulation: SimulationRuns, tmp_path: Path) -> None:
    file = tmp_path / "quiet.toml"
    file.write_text(QUIET)
    assert simulation.run(file).seed == 7
    assert simulation.run(str(file), seed=8).seed == 8
    assert simulation.run(parse_scenario(QUIET, "quiet"), settings={}).verdict == "pass"
    assert simulation.run("assignment-order", settings={}).verdict == "pass"
    with pytest.raises(ValueError, match="settings expected: expected none"):
        simulation.run(load_scenario("bounce"))


def test_a_run_that_fails_says_how_to_repeat_it(
    simulation: SimulationRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quiet.toml"
    file.write_text(QUIET)
    with pytest.raises(RunFailed, match="verdict: fail") as failure:
        simulation.run(file, seed=5, settings={"expected": 1})
    program, *words = shlex.split(failure.value.replay)
    assert program == "camerlengo"
    assert words == ["simulate", str(file), "--set", "expected=1", "--seed", "5"]
    assert main(words) == 1
    assert "verdict: fail" in capsys.readouterr().out
    ((heading, text),) = simulation.sections()
    assert heading == "Simulation"
    assert "is the controller, epoch 1" in text
    assert failure.value.replay in text
    (page,) = simulation.write_pages(tmp_path / "pages", "a test")
    assert "--set expected=1" in page.read_text()


def test_a_plan_that_is_made_in_a_test_can_be_repeated(simulation: SimulationRuns, tmp_path: Path) -> None:
    plan = draw_plan(2)
    assert simulation.run(plan).seed == plan.seed
    ((_, text),) = simulation.sections()
    replay = next(line for line in text.splitlines() if line.startswith("replay: "))
    path = Path(shlex.split(replay)[-1])
    assert simulation.run(path).judgement == simulation.run(plan).judgement


@pytest.mark.simulation(seed=7, settings={"min.insync.replicas": 2})
def test_a_simulated_cluster_is_stepped(simulation: SimulationRuns) -> None:
    world = simulation.cluster(brokers=3)
    world.run_until(lambda: len(world.registered) == 3)
    world.kill(1)
    world.run_until_rest()
    with pytest.raises(NotInTime):
        world.run_until(lambda: 1 in world.running, within_ms=100)
    assert issubclass(BrokenInvariant, AssertionError)
    ((_, text),) = simulation.sections()
    assert "FAULT kill: broker 1" in text
    assert "replay: the same test with seed 7" in text


# -- chaos


@pytest.mark.chaos(settings={"expected": 0})
def test_a_scenario_runs_on_real_processes(chaos: ChaosRuns, tmp_path: Path) -> None:
    file = tmp_path / "quiet.toml"
    file.write_text(QUIET)
    assert chaos.run(file).host == "real"
    ((heading, text),) = chaos.sections()
    assert heading == "Chaos"
    assert text.endswith(f"replay: camerlengo chaos {file} --set expected=0")
    assert len(chaos.write_pages(tmp_path / "pages", "a test")) == 1


def test_a_fault_of_the_simulator_alone_is_no_chaos(chaos: ChaosRuns) -> None:
    scenario = parse_scenario(QUIET + '[[steps]]\ndo = "lose-power"\nnode = 1\n', "quiet")
    with pytest.raises(RunNotPossible, match=r"quiet: steps\[3\]"):
        chaos.run(scenario, settings={})
