"""Common silent mistakes that belong to no technique, one idea per file: each check gives a line or None."""
