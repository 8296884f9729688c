"""Runs on the controller: decides at submission whether a job may share its GPU, and rewrites its GRES."""
