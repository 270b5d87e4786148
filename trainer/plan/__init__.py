"""The plan of a run: what each step does, writes and holds, known before anything is trained."""
