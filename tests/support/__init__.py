"""Small networks, objectives and hooks that tests share."""
