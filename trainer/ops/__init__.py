"""Pure tensor functions that hooks and recipes share, one idea per file, usable without the framework."""
