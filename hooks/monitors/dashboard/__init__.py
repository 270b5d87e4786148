"""The dashboard of a run: a module for each kind of record, and the event files that hold them."""
