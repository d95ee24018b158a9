"""Weight sync: a trainer publishes new weights in every step, and inference engines take the newest."""
