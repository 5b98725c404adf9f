"""Nothing that workers started outlives them: finding it, ending it, and guarding the launcher."""
