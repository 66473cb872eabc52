"""What everything else stands on: errors for people, units, random streams, checks, files read and written whole."""
