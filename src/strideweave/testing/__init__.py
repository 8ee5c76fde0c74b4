"""What authors of carriers test with: the contract as tests, faults by ordinal, and strategies for hypothesis.

`strideweave.testing.strategies` needs hypothesis, which the `testing` extra brings, so it is imported by its own name.
"""

from strideweave.testing.contract import CarrierContract, ReadOnlyCarrierContract
from strideweave.testing.faulty import FaultScript, FaultyCarrier, Hold

__all__ = ["CarrierContract", "FaultScript", "FaultyCarrier", "Hold", "ReadOnlyCarrierContract"]
