"""The compiled machines, ready to use.

>>> from statemachines.tables import PARTITION
>>> from statemachines.partition import PartitionState
>>> sorted(state.name for state in PARTITION.valid_sources(PartitionState.NonExistent))
['Offline']
"""

from __future__ import annotations

from statemachines import operation, partition, reassignment, replica
from statemachines.machine import CompiledMachine, compile_machine
from statemachines.operation import OperationState
from statemachines.partition import PartitionState
from statemachines.reassignment import ReassignmentState
from statemachines.replica import ReplicaState

PARTITION: CompiledMachine[PartitionState] = compile_machine("partition", PartitionState, partition.DECLARATION)
REPLICA: CompiledMachine[ReplicaState] = compile_machine("replica", ReplicaState, replica.DECLARATION)
OPERATION: CompiledMachine[OperationState] = compile_machine("operation", OperationState, operation.DECLARATION)
REASSIGNMENT: CompiledMachine[ReassignmentState] = compile_machine(
    "reassignment", ReassignmentState, reassignment.DECLARATION
)
