"""What commonly goes wrong without an error and belongs to no technique, one idea a file: each gives a line or None."""
