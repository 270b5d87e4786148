"""What hooks that quantize weights or layer inputs share."""
