"""Config: compose it, check it, and build objects from it."""
