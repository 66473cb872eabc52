"""Settings of published experiments, as far as they are known; each says what is published and what is assumed."""
