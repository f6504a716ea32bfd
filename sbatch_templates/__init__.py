"""The batch script's template. A package so that it is found in a wheel and in an editable install alike."""
