"""Parts of the split guard: what tells images apart, and the search for copies."""
