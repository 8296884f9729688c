"""What was decided, estimated and measured: wire types, database, and `gpumem-hist`."""
