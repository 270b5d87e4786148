"""Code shared by hooks that quantize weights or layer inputs."""
