"""What a run is: steps, their parts, the facts that rules look at."""
