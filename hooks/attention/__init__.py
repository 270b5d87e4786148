"""Parts of attention by a Bernoulli gate: the gate, the branch before it, where they go, their options."""

from __future__ import annotations
