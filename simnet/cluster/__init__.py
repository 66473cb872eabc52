"""What runs on a real cluster: communication hooks (`hooks`) and measuring collectives (`measure`)."""
