"""What data sets hold: readers of their files, and sentences and problems that are made by seed."""
