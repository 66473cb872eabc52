"""What users ask: the commands of the line (`commands`) and the functions of the library (`library`)."""
