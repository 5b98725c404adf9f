"""What is said of command lines that are probably not what their author meant.

Nothing here refuses anything: options that have no effect or stand in the wrong place are warned
of, and the error about a script that is not there says what could help.
"""
