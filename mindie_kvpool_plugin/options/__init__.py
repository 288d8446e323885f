"""Options: the one reading of a pool file, for the running plugin and for the check.  Imports nothing heavy."""
