"""The fold: events with their sequences and a state give the next state."""
