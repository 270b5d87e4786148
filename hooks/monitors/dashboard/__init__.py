"""What the dashboard of a run is made of: a file for each kind of record, and the event files that hold them."""
