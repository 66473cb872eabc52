"""Online adviser: learns the costs of exchanges from iteration times and recommends the fastest, with reasons."""
