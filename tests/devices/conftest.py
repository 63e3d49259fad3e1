"""Scripts of a process of their own: to import them would register the device here."""

collect_ignore = ["read_backs.py", "second_device.py", "whole_models.py"]
