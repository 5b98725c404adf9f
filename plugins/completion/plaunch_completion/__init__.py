"""Shell completion: the script that `--print-completion` prints, and the names that it asks for."""
