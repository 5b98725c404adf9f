"""The built-in signal policies, a module for each: a launch imports the one that it uses."""
