"""The rules, one topic a file; `catalogue.py` lists them all."""
