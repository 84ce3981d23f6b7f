"""The main job: a word count by a fleet of workers, while servers and workers are killed."""
