"""Batch scripts after the styles found in public repositories, each with the launch plan that it has.

NAME.toml beside NAME.sh holds the plan: `layout` (nodes, tasks, GPUs of a node), `problem` (how the dry run
ended, if not well), `skipped` (commands that stand-ins answered) and for each `[[program]]` its `command`,
`via`, `ranks`, `framework`, `cwd` below the project, and the part of its `environment` that matters.
"""
