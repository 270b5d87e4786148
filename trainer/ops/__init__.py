"""Pure tensor functions that hooks and recipes share, one idea a file, usable without the framework."""
