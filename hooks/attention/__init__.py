"""The parts of attention by a Bernoulli gate: the gate, the branch before it, where they go, what is asked of them."""

from __future__ import annotations
