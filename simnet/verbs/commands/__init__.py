"""The command line, a module for each verb; `options` and `terminal` have what they share."""
