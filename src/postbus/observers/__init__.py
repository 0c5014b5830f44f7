"""What users subclass: it takes events and a state, and makes a new state of them."""

from postbus.observers.projection import Projection
from postbus.observers.saga import Saga, SagaContext
from postbus.observers.states import StateStore

__all__ = ["Projection", "Saga", "SagaContext", "StateStore"]
