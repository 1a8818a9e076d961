"""Programs that run on two replicas; the tests compare what they find with numpy."""
