"""Online adviser: it learns the costs of exchanges from iteration times, and recommends the fastest exchange."""
