"""The parts of a partitioned subscriber: how they are spread over instances, and how many there are."""
