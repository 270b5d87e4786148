"""The parts of `scripts/catalogue.py`: what hooks and recipes say of themselves, and the page made of it."""
