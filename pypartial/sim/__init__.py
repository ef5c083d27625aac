"""Many ranks in one process: the engine's object code over a network made of virtual time."""
