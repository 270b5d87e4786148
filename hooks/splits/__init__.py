"""Parts of the split guard: fingerprints of images, and the search for copies."""
